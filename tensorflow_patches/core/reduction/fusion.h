// Executes one agreed response on this rank: pack, transport, unpack.
//
// Small tensors share a buffer; a tensor in wire form that is sent alone is reduced in place. For
// data on GPUs see core/gpu/gpu_reduction.h. Called on the communication thread. The buffer is kept
// between steps, since newly allocated memory costs page faults.

#ifndef TFMPI_CORE_REDUCTION_FUSION_H_
#define TFMPI_CORE_REDUCTION_FUSION_H_

#include <algorithm>
#include <utility>
#include <vector>

#include "tensorflow_patches/core/base/sizes.h"
#include "tensorflow_patches/core/gpu/gpu_reduction.h"
#include "tensorflow_patches/core/memory/line_memory.h"
#include "tensorflow_patches/core/request/fusion_entry.h"
#include "tensorflow_patches/core/request/request.h"
#include "tensorflow_patches/core/transport/transport.h"

namespace tfmpi {

class Fusion {
 public:
  // `threshold`: a single tensor that is not in wire form is reduced in chunks of this many bytes,
  // but at least kAloneBytes.
  Fusion(Transport* transport, size_t threshold, GpuOptions gpus = GpuOptions())
      : transport_(transport),
        chunk_bytes_(std::max(threshold, kAloneBytes)),
        gpus_(transport, std::move(gpus)) {}

  // All entries have the same reduction and wire type. An average is divided by `contributors`.
  Status Allreduce(const std::vector<FusionEntry>& entries, int contributors, TimePoint deadline);
  // `rows` by rank.
  Status Allgather(const FusionEntry& entry, const std::vector<int64_t>& rows, TimePoint deadline);
  Status SparseAllgather(const FusionEntry& entry, const std::vector<int64_t>& rows,
                         int contributors, TimePoint deadline);
  Status Broadcast(const FusionEntry& entry, TimePoint deadline);

  // Fails if GPU work that an Allreduce has left running has failed or timed out.
  Status CheckGpus(TimePoint now) { return gpus_.Check(now); }
  // Call it after a failure, so that no stream waits forever.
  void AbortGpus() { gpus_.Abort(); }
  // Called by all ranks before they end together: waits for the GPU work that is left.
  Status DrainGpus(TimePoint deadline) { return gpus_.Drain(deadline); }

  // Copies the entries, one after another in wire form, to or from `wire`, which has `bytes` bytes.
  // `factors`: by entry, a factor for its data besides the request's scale; null: 1.
  static void PackAll(const std::vector<FusionEntry>& entries, char* wire, size_t bytes,
                      const double* factors = nullptr);
  static void UnpackAll(const std::vector<FusionEntry>& entries, const char* wire, size_t bytes);

 private:
  Status ReduceInPlace(const FusionEntry& entry, double scale, TimePoint deadline);
  Status ReduceInChunks(const FusionEntry& entry, double scale, TimePoint deadline);
  Status ReduceFused(const std::vector<FusionEntry>& entries, double scale, TimePoint deadline);
  // Reduces `count` wire elements over all ranks, with the dtype and op of `signature`.
  Status Reduce(const void* in, void* out, size_t count, const Signature& signature, double scale,
                TimePoint deadline);
  // Makes `buffer_` at least this large. If it was smaller, it moves and loses its contents.
  Status Reserve(size_t bytes);

  Transport* const transport_;
  const size_t chunk_bytes_;
  GpuReduction gpus_;
  LineMemory buffer_;
  size_t buffer_bytes_ = 0;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_REDUCTION_FUSION_H_
