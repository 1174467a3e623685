// Carries out a response whose tensors lie on a GPU, over a transport that knows host memory only.
//
// In chunks, through a ring of slots of pinned memory: while one chunk is exchanged, those behind
// it are on their way from the GPU, and those before it on their way back. The submitter's stream
// never waits for the host, nor the host for that stream: each waits for an event of the other.
//
//   submitter's stream   ... gradient | ready ............................ wait | optimizer ...
//   fetching stream            wait ready | copy | fetched
//   communication thread                          await fetched | exchange | enqueue
//   landing stream                                                  copy | landed
//
// Inside a node the exchange reduces in place, in memory that its ranks share and their GPUs know:
// then a chunk is copied once on its way there and once on its way back (PinnedRing).
//
// Called by the communication thread, which alone waits for the GPU, with the response's deadline.
// What fails on the GPU is an error of kUnavailable: the peers wait in the same exchange.

#ifndef TFMPI_CORE_GPU_STAGED_STAGED_REDUCTION_H_
#define TFMPI_CORE_GPU_STAGED_STAGED_REDUCTION_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tensorflow_patches/core/gpu/staged/chunks.h"
#include "tensorflow_patches/core/gpu/staged/pinned_ring.h"
#include "tensorflow_patches/core/request/fusion_entry.h"
#include "tensorflow_patches/core/transport/transport.h"

namespace tfmpi {

class StagedReduction {
 public:
  explicit StagedReduction(Transport* transport, size_t chunk_bytes = kGpuChunkBytes)
      : transport_(transport), chunk_bytes_(chunk_bytes), ring_(chunk_bytes) {}

  // By all ranks, between two calls: from now on through `buffers`, of BufferBytes()
  // each; `gpu`, which may be null, is the one that this rank has. A rank on which it fails, or
  // whose peer's does, must Unshare.
  Status Share(std::unique_ptr<NodeBuffers> buffers, Gpu* gpu) {
    return ring_.Share(std::move(buffers), gpu);
  }
  void Unshare() { ring_.Unshare(); }
  size_t BufferBytes() const { return ring_.BufferBytes(); }

  // As Fusion::Allreduce: the result is multiplied by `scale`. When it returns, the results are on
  // their way, and every submitter's stream waits for its own; also after a failure, so that no
  // memory is given to others while a copy may touch it.
  Status Allreduce(const std::vector<FusionEntry>& entries, double scale, TimePoint deadline);
  Status Broadcast(const FusionEntry& entry, TimePoint deadline);

 private:
  // Of one response.
  struct Work;

  Status Run(Work* work);
  Status Fetch(const Work& work, size_t number);
  Status Arrived(const PinnedRing::Slot& slot, const Work& work);
  Status Await(Gpu* gpu, GpuEvent event, const Work& work);
  Status ReadScales(const PinnedRing::Slot& slot, const Chunk& chunk, Work* work);
  Status Exchange(const PinnedRing::Slot& slot, const Chunk& chunk, const Work& work);
  Status BroadcastChunk(const PinnedRing::Slot& slot, const Chunk& chunk, const Work& work);
  Status Reduce(const PinnedRing::Slot& slot, const Chunk& chunk, const Work& work);
  template <typename Take>
  Status ForEachRun(const PinnedRing::Slot& slot, const Chunk& chunk, const Work& work,
                    size_t begin, size_t bytes, const Take& take) const;
  Status Land(const PinnedRing::Slot& slot, const Chunk& chunk, const Work& work);
  Status Release(const Work& work);

  Transport* const transport_;
  const size_t chunk_bytes_;
  PinnedRing ring_;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_GPU_STAGED_STAGED_REDUCTION_H_
