// A request: this rank's part in one operation over all ranks, from submission to completion. It is
// of one tensor, or of several that are always handed in together.

#ifndef TFMPI_CORE_REQUEST_REQUEST_H_
#define TFMPI_CORE_REQUEST_REQUEST_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tensorflow_patches/core/base/row_access.h"
#include "tensorflow_patches/core/base/status.h"
#include "tensorflow_patches/core/base/types.h"
#include "tensorflow_patches/core/device/gpu.h"

namespace tfmpi {

using Members = std::vector<int32_t>;

// Tensors that are always handed in together, as one request: agreeing on each would cost more than
// moving a small one does.
struct Parts {
  std::vector<std::string> names;
  std::vector<Shape> shapes;

  bool operator==(const Parts& other) const {
    return names == other.names && shapes == other.shapes;
  }
};

// What the ranks must agree on before any data moves. The name is the same on every rank.
struct Signature {
  OpKind kind = OpKind::kAllreduce;
  ReduceOp op = ReduceOp::kAverage;  // allreduce only
  DataType dtype = DataType::kFloat32;
  int32_t root = 0;  // broadcast only
  Shape shape;       // GathersRows: ranks may differ in the first dimension, the rows
  // SparseAllgather only: bytes that travel for each row beside its elements, as its index.
  int32_t extra_row_bytes = 0;
  // SparseAllgather only: with more rows than this in all, no data moves; -1: any number.
  int64_t row_limit = -1;
  // SparseAllgather only: a rank's rows travel as it has them, duplicates and all.
  bool every_row = false;
  // Allreduce and broadcast: the memory is a GPU's, and travels in chunks that all ranks cut alike.
  bool on_gpu = false;
  // Allreduce only: each rank may give its data a weight of its own (Request::scale).
  bool weighted = false;
  // The ranks whose operation it is, in ascending order; null: all. The others neither ask for it
  // nor wait, and pass on what they must: zeros, or what changes no minimum, maximum or product.
  std::shared_ptr<const Members> members = nullptr;
  // Allreduce only: null for one tensor. Else `shape` is the number of elements of all, each of
  // which takes up PaddedElements. Shared: it is compared by address first.
  std::shared_ptr<const Parts> parts = nullptr;

  bool operator==(const Signature& other) const {
    const bool same_parts = parts == other.parts ||
                            (parts != nullptr && other.parts != nullptr && *parts == *other.parts);
    const bool same_members =
        members == other.members ||
        (members != nullptr && other.members != nullptr && *members == *other.members);
    return same_parts && same_members && kind == other.kind && op == other.op &&
           dtype == other.dtype && root == other.root && shape == other.shape &&
           extra_row_bytes == other.extra_row_bytes && row_limit == other.row_limit &&
           every_row == other.every_row && on_gpu == other.on_gpu && weighted == other.weighted;
  }
  bool operator!=(const Signature& other) const { return !(*this == other); }
};

// "allreduce average of float32 [3, 4]"
std::string Describe(const Signature& signature);
// "[3, 4]"
std::string Describe(const Shape& shape);
// Of one tensor in memory, with what belongs to its rows.
inline uint64_t Bytes(const Signature& signature) {
  const int64_t rows = signature.shape.empty() ? 0 : signature.shape[0];
  return static_cast<uint64_t>(NumElements(signature.shape)) * SizeOf(signature.dtype) +
         static_cast<uint64_t>(rows * signature.extra_row_bytes);
}
// GathersRows: of one row on the way.
size_t RowBytes(const Signature& signature);
inline size_t Tensors(const Signature& signature) {
  return signature.parts != nullptr ? signature.parts->names.size() : 1;
}
// Of a dense tensor over all ranks.
inline bool IsAverage(const Signature& signature) {
  return signature.kind == OpKind::kAllreduce && signature.op == ReduceOp::kAverage;
}
// What traces and statistics take for a gradient.
inline bool IsGradient(const Signature& signature) {
  if (signature.kind == OpKind::kSparseAllgather) return signature.extra_row_bytes != 0;  // sparse
  return IsAverage(signature);
}
bool IsMember(const Signature& signature, int rank);
// As the ranks must agree on it: an allgather has 0 rows, everything else is as it is.
Signature WithoutRows(Signature signature);
// "'w': rank 0 has allreduce ..., rank 1 has allreduce ...": where the signatures of a name differ,
// in the first part that does if there are parts.
std::string DescribeDifference(const std::string& name, int first_rank, const Signature& first,
                               int second_rank, const Signature& second);
// Why the ranks could not carry it out, whatever they agree on; ok if they could.
Status Validate(const Signature& signature);

// What a request is for: whether the others can do without a rank that has nothing to give.
enum class Purpose : uint8_t {
  kStep,    // a kernel's, of a training step
  kScript,  // the script's own, or a decision that all ranks must make alike
  kBeside,  // of neither: who has made it goes on with something else
  kData,    // a data set's, made ahead of its use
};
inline constexpr int kNumPurposes = 4;
// Whether the script's thread goes on only when it has ended.
inline bool IsWaitedFor(Purpose purpose) {
  return purpose == Purpose::kStep || purpose == Purpose::kScript;
}

// Whose memory a request's is, where Signature::on_gpu says so.
struct GpuMemory {
  Gpu* gpu = nullptr;
  // The submitter's: what is enqueued there after the request has ended finds its result.
  GpuStream stream = nullptr;
  // When it has happened the input is there, and the output may be written. Lives until `done`.
  GpuEvent ready = nullptr;
  // If not null, a float32 of the GPU's, there when `ready` has happened, in place of `scale`.
  const void* scale = nullptr;
};

struct Request {
  std::string name;
  Signature signature;
  // Of the data, for the warning that all ranks are fed the same; 0: not a gradient, or all zeros.
  uint64_t fingerprint = 0;

  Purpose purpose = Purpose::kStep;
  // The script's only thread that uses the engine waits for this, and asks for nothing meanwhile.
  bool blocks = false;
  // Such a thread has no gradients to give meanwhile, and the others need not wait for any.
  bool has_no_gradients = false;

  // Owned by the submitter, untouched by it until `done` has run. `input` may equal `output`.
  // Broadcast: only `output`, which holds the data on the root.
  const void* input = nullptr;
  void* output = nullptr;
  // In place of `input`, for each of signature.parts. In place of the outputs, which are null then,
  // there may be an `output`: where the results go as they lie on the wire, if that is their type's
  // memory (IsWireForm). It spares a copy.
  struct Buffers {
    const void* input;
    void* output;
  };
  std::vector<Buffers> parts;
  // Allreduce of floating types: this rank's data counts times this. With 0 it counts as zeros,
  // whatever it holds, NaN too. May differ by rank.
  double scale = 1;
  // Such a weight that the data has been multiplied by already.
  double weighed = 1;
  // Broadcast: the group in which `signature.root` was chosen (Engine::generation), and the data
  // laid there on it; kThisGeneration: the one in which it is submitted.
  static constexpr uint64_t kThisGeneration = UINT64_MAX;
  uint64_t generation = kThisGeneration;
  static constexpr int kDeadRoot = INT32_MIN;  // `signature.root` has died since
  GpuMemory memory;
  // Set by Engine::Submit.
  TimePoint submitted;
  // Allgather: called once, on the communication thread, with each rank's first dimension; returns
  // where the result goes (all rows, in rank order), or null to fail the request.
  std::function<void*(const std::vector<int64_t>& rows)> allocate;
  // SparseAllgather: the rows, in place of all memory above. Untouched if there are more than the
  // signature's limit: the request then ends well.
  RowAccess* rows = nullptr;

  // Runs exactly once, on the communication thread (or inside Submit when the engine has failed),
  // under no lock. It must not block and must not destroy the engine.
  std::function<void(const Status&)> done;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_REQUEST_REQUEST_H_
