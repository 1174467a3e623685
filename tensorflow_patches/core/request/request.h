// A request: this rank's part in one collective operation, from submission to completion. It has
// one tensor, or several that are always submitted together.

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

// The tensors of one request: agreeing on each would cost more than moving a small one.
struct Parts {
  std::vector<std::string> names;
  std::vector<Shape> shapes;

  bool operator==(const Parts& other) const {
    return names == other.names && shapes == other.shapes;
  }
};

// What the ranks must agree on before any data moves.
struct Signature {
  OpKind kind = OpKind::kAllreduce;
  ReduceOp op = ReduceOp::kAverage;  // allreduce only
  DataType dtype = DataType::kFloat32;
  int32_t root = 0;  // broadcast only
  Shape shape;       // GathersRows: ranks may differ in the first dimension, the rows
  // SparseAllgather only: bytes sent for each row besides its elements, such as its index.
  int32_t extra_row_bytes = 0;
  // SparseAllgather only: no data moves if the ranks have more rows in total; -1: no limit.
  int64_t row_limit = -1;
  // SparseAllgather only: each rank's rows are sent unchanged, including duplicates.
  bool every_row = false;
  // Allreduce and broadcast: the data is in GPU memory, on all ranks, which move it the same way.
  bool on_gpu = false;
  // Allreduce only: each rank may give its data a weight of its own (Request::scale).
  bool weighted = false;
  // The ranks that take part, in ascending order; null: all. The scripts of the others neither
  // submit it nor wait for it; their engines contribute the op's neutral element, such as zeros to
  // a sum.
  std::shared_ptr<const Members> members = nullptr;
  // Allreduce only: null for one tensor. Otherwise `shape` is the total number of elements, with
  // the padding of PaddedElements for each part. Shared, and compared by address first.
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
// The size of the request's data in memory, with the padding of parts and the extra bytes of rows.
inline uint64_t Bytes(const Signature& signature) {
  const int64_t rows = signature.shape.empty() ? 0 : signature.shape[0];
  return static_cast<uint64_t>(NumElements(signature.shape)) * SizeOf(signature.dtype) +
         static_cast<uint64_t>(rows * signature.extra_row_bytes);
}
// GathersRows: the size of one row on the wire.
size_t RowBytes(const Signature& signature);
// SparseAllgather: whether no data moves, because the ranks have more rows in total than
// `row_limit`. All ranks know all row counts, so all decide the same.
bool IsBeyondLimit(const Signature& signature, const std::vector<int64_t>& rows);
inline size_t Tensors(const Signature& signature) {
  return signature.parts != nullptr ? signature.parts->names.size() : 1;
}
// Whether this averages dense tensors.
inline bool IsAverage(const Signature& signature) {
  return signature.kind == OpKind::kAllreduce && signature.op == ReduceOp::kAverage;
}
// Whether this averages a gradient. The script's own averages count as gradients, too; only their
// Purpose differs. A sparse allgather without extra bytes has no indices: it sends updated rows,
// not gradients (glue/extras/divided_update.cc).
inline bool IsGradient(const Signature& signature) {
  if (signature.kind == OpKind::kSparseAllgather) return signature.extra_row_bytes != 0;
  return IsAverage(signature);
}
bool IsMember(const Signature& signature, int rank);
// The part that must be the same on all ranks: an allgather gets 0 rows, others are unchanged.
Signature WithoutRows(Signature signature);
bool EqualWithoutRows(const Signature& a, const Signature& b);
// "'w': rank 0 has allreduce ..., rank 1 has allreduce ...": where the signatures of a name differ.
// With parts, the first part that differs.
std::string DescribeDifference(const std::string& name, int first_rank, const Signature& first,
                               int second_rank, const Signature& second);
// Not ok, with the reason, if no rank could execute it.
Status Validate(const Signature& signature);

// Decides, for example, whether a request may complete without a rank that has no gradients.
enum class Purpose : uint8_t {
  kStep,        // a kernel in a training step
  kScript,      // the script's own call, or a decision that all ranks must share
  kBackground,  // neither; its submitter continues, and may wait for it later
  kData,        // a dataset's, submitted ahead of its use
};
inline constexpr int kNumPurposes = 4;
// Whether the script's thread waits for it from the start.
inline bool IsWaitedFor(Purpose purpose) {
  return purpose == Purpose::kStep || purpose == Purpose::kScript;
}

// The GPU memory of a request with Signature::on_gpu.
struct GpuMemory {
  Gpu* gpu = nullptr;
  // The submitter's stream: work enqueued there after the request has ended sees its result.
  GpuStream stream = nullptr;
  // Once it has occurred the input is complete and the output may be written. Lives until `done`
  // has run.
  GpuEvent ready = nullptr;
  // If not null, a float32 in GPU memory that replaces `scale`, valid once `ready` has occurred.
  const void* weight_on_gpu = nullptr;
};

struct Request {
  std::string name;  // the same on every rank
  Signature signature;
  // A hash of the data, for the warning that all ranks have the same data. 0: not computed, as for
  // all but the first gradients and on GPUs, or the data is all zeros.
  uint64_t fingerprint = 0;

  Purpose purpose = Purpose::kStep;
  // The script's only thread that uses the engine waits for it and submits nothing meanwhile.
  bool blocks = false;
  // With `blocks`: this rank has no gradients meanwhile, so the others need not wait for any.
  bool has_no_gradients = false;

  // Memory of the submitter, which must not touch it until `done` has run. `input` may equal
  // `output`. Broadcast: only `output`, with the data on the root. Allgather: only `input`.
  const void* input = nullptr;
  void* output = nullptr;
  // Replaces `input`, with one element for each of signature.parts. If their outputs are null,
  // `output` receives the results in wire form, which must be the memory layout of their type
  // (IsWireForm). That saves a copy.
  struct Buffers {
    const void* input;
    void* output;
  };
  std::vector<Buffers> parts;
  // Allreduce of floating types: a factor for this rank's data. With 0 the data counts as zeros,
  // even if it contains NaN. Other than 1 only with Signature::weighted.
  double scale = 1;
  // A weight that `input` already contains. Only used after a death: the average is then divided by
  // the sum of the remaining ranks' scale * applied_weight (core/recovery).
  double applied_weight = 1;
  // Broadcast: the generation of the group in which `signature.root` was chosen and provided the
  // data (Published::generation); kThisGeneration: the group in which it is submitted.
  static constexpr uint64_t kThisGeneration = UINT64_MAX;
  uint64_t generation = kThisGeneration;
  static constexpr int kDeadRoot = INT32_MIN;  // replaces a `signature.root` that has died
  GpuMemory memory;
  // Set by Engine::Submit if traces or statistics are recorded.
  TimePoint submitted;
  // Allgather: called once, on the communication thread, with each rank's first dimension; returns
  // the memory for the result (all rows, in rank order). Null fails the request, unless the result
  // is empty.
  std::function<void*(const std::vector<int64_t>& rows)> allocate;
  // SparseAllgather: replaces all memory above. Nothing is called if the ranks have more rows than
  // the signature's limit; the request then ends with ok.
  RowAccess* rows = nullptr;

  // Runs exactly once, on the communication thread (or inside Submit, after Join or once the engine
  // has stopped), with no lock held. It must not block and must not destroy the engine.
  std::function<void(const Status&)> done;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_REQUEST_REQUEST_H_
