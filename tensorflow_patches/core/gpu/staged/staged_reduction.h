// Executes a response whose tensors are on a GPU, over a transport that supports host memory only.
//
// Chunks pass through a ring of slots of pinned memory: while one chunk is exchanged, later ones
// are on the way from the GPU and earlier ones on the way back. The submitter's stream never waits
// for the host, nor the host for that stream: they wait for events of the other two streams.
//
//   submitter's stream   ... gradient | ready ............................ wait | optimizer ...
//   fetching stream            wait ready | copy | fetched
//   communication thread                          await fetched | exchange | enqueue
//   landing stream                                                  copy | landed
//
// Inside a node the exchange reduces in place, in memory that its ranks share and their GPUs can
// access: a chunk is then copied once in each direction (PinnedRing).
//
// Communication thread only; it waits for the GPU until the response's deadline. A failure on the
// GPU is a kUnavailable error, since the peers wait in the same exchange.

#ifndef TFMPI_CORE_GPU_STAGED_STAGED_REDUCTION_H_
#define TFMPI_CORE_GPU_STAGED_STAGED_REDUCTION_H_

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

  // Called by all ranks, between two reductions: from now on uses `buffers`, of BufferBytes() each.
  // If it fails on any rank, all ranks must call Unshare.
  Status Share(std::unique_ptr<NodeBuffers> buffers, Gpu* gpu) {
    return ring_.Share(std::move(buffers), gpu);
  }
  void Unshare() { ring_.Unshare(); }
  size_t BufferBytes() const { return ring_.BufferBytes(); }

  // Like Fusion::Allreduce, with the result multiplied by `scale`. On return the results are on the
  // way, and every submitter's stream waits for its own. It does so after a failure, too, so that
  // no memory is reused while a copy may access it.
  Status Allreduce(const std::vector<FusionEntry>& entries, double scale, TimePoint deadline);
  Status Broadcast(const FusionEntry& entry, TimePoint deadline);

 private:
  struct Work;  // the state of one response

  Status Run(Work* work);
  Status Fetch(const Work& work, size_t number);
  Status AwaitFetched(const PinnedRing::Slot& slot, const Work& work);
  Status Await(Gpu* gpu, GpuEvent event, const Work& work);
  void ReadScales(const PinnedRing::Slot& slot, const Chunk& chunk, Work* work);
  Status Exchange(const PinnedRing::Slot& slot, const Chunk& chunk, const Work& work);
  Status BroadcastChunk(const PinnedRing::Slot& slot, const Chunk& chunk, const Work& work);
  Status Reduce(const PinnedRing::Slot& slot, const Chunk& chunk, const Work& work);
  template <typename Take>
  Status ForEachRun(const PinnedRing::Slot& slot, const Chunk& chunk, const Work& work,
                    size_t begin, size_t bytes, const Take& take) const;
  Status Land(const PinnedRing::Slot& slot, const Chunk& chunk, const Work& work);
  Status LetSubmittersContinue(const Work& work);

  Transport* const transport_;
  const size_t chunk_bytes_;
  PinnedRing ring_;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_GPU_STAGED_STAGED_REDUCTION_H_
