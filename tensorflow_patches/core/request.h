// A request: one tensor's part in one operation over all ranks, from submission to completion.

#ifndef TFMPI_CORE_REQUEST_H_
#define TFMPI_CORE_REQUEST_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tensorflow_patches/core/status.h"
#include "tensorflow_patches/core/types.h"

namespace tfmpi {

// What the ranks must agree on before any data moves. The name is the same on every rank.
struct Signature {
  OpKind kind = OpKind::kAllreduce;
  ReduceOp op = ReduceOp::kAverage;  // allreduce only
  DataType dtype = DataType::kFloat32;
  int32_t root = 0;  // broadcast only
  Shape shape;

  bool operator==(const Signature& other) const {
    return kind == other.kind && op == other.op && dtype == other.dtype && root == other.root &&
           shape == other.shape;
  }
  bool operator!=(const Signature& other) const { return !(*this == other); }
};

// "allreduce average of float32 [3, 4]"
std::string Describe(const Signature& signature);
// "[3, 4]"
std::string Describe(const Shape& shape);
// Of one tensor, as it lies in memory.
inline uint64_t Bytes(const Signature& signature) {
  return static_cast<uint64_t>(NumElements(signature.shape)) * SizeOf(signature.dtype);
}
// What traces and statistics take for a gradient.
inline bool IsGradient(const Signature& signature) {
  return signature.kind == OpKind::kAllreduce && signature.op == ReduceOp::kAverage;
}
// Why the ranks could not carry it out, whatever they agree on; ok if they could.
Status Validate(const Signature& signature);

struct Request {
  std::string name;
  Signature signature;
  // Of the data, for the warning that all ranks are fed the same; 0: not a gradient, or all zeros.
  uint64_t fingerprint = 0;

  // Owned by the submitter, untouched by it until `done` has run. `input` may equal `output`.
  // Broadcast: only `output`, which holds the data on the root.
  const void* input = nullptr;
  void* output = nullptr;
  // Allreduce of floating types: this rank's data counts times this. With 0 it counts as zeros,
  // whatever it holds, NaN too. May differ by rank.
  double scale = 1;
  // Set by Engine::Submit.
  TimePoint submitted;
  // Allgather: called once, on the communication thread, with each rank's first dimension; returns
  // where the result goes (all rows, in rank order), or null to fail the request.
  std::function<void*(const std::vector<int64_t>& rows)> allocate;

  // Runs exactly once, on the communication thread (or inside Submit when the engine has failed),
  // under no lock. It must not block and must not destroy the engine.
  std::function<void(const Status&)> done;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_REQUEST_H_
