// Executes responses whose tensors are on GPUs: among the GPUs by NCCL, on the one GPU that all
// ranks share, by a CUDA-aware MPI, or staged through the hosts.
//
// The ranks choose once, together, at the first such allreduce in which all take part: each rank
// reports its GPU, its NCCL and whether its MPI is CUDA-aware, and all apply the same rule
// (core/device/choice.h). A broadcast, a response in which not all ranks take part, or one of an
// unsupported type, is always staged. Communication thread only.

#ifndef TFMPI_CORE_GPU_GPU_REDUCTION_H_
#define TFMPI_CORE_GPU_GPU_REDUCTION_H_

#include <memory>
#include <utility>
#include <vector>

#include "tensorflow_patches/core/device/nccl.h"
#include "tensorflow_patches/core/gpu/direct/direct_reduction.h"
#include "tensorflow_patches/core/gpu/gpu_options.h"
#include "tensorflow_patches/core/gpu/staged/staged_reduction.h"
#include "tensorflow_patches/core/request/fusion_entry.h"
#include "tensorflow_patches/core/transport/transport.h"

namespace tfmpi {

// Called by all ranks: replaces `data` with that of rank `first`. Ranks may pass different `first`.
Status ShareFirstValue(Transport* transport, int first, void* data, size_t bytes,
                       TimePoint deadline);

class GpuReduction {
 public:
  GpuReduction(Transport* transport, GpuOptions options)
      : transport_(transport),
        options_(std::move(options)),
        staged_(transport, options_.staged_chunk_bytes) {}

  // Like Fusion::Allreduce, but multiplies the result by `scale`: for an average, 1 / contributors.
  Status Allreduce(const std::vector<FusionEntry>& entries, int contributors, double scale,
                   TimePoint deadline);
  Status Broadcast(const FusionEntry& entry, TimePoint deadline) {
    return staged_.Broadcast(entry, deadline);
  }
  // Checks work in flight; see DirectReduction.
  Status Check(TimePoint now) { return direct_ != nullptr ? direct_->Check(now) : Status(); }
  // Called by all ranks before they end together. On return no rank still reads another's memory.
  Status Drain(TimePoint deadline);
  // Call it after a failure.
  void Abort() {
    if (direct_ != nullptr) direct_->Abort();
  }

 private:
  Status Choose(const GpuMemory& own, TimePoint deadline);
  DeviceFacts FactsOf(const Gpu& own);
  Status Gather(const DeviceFacts& own, std::vector<DeviceFacts>* all, TimePoint deadline);
  // Sets direct_ on all ranks, or on none, with the reason in `why_not`. `shares`: some ranks share
  // a GPU.
  Status MakeDirect(DeviceWay way, const GpuMemory& own, bool shares, TimePoint deadline,
                    std::string* why_not);
  // `in_node`: over the ranks of this node, instead of all ranks.
  Status MakeNccl(const GpuMemory& own, bool in_node, bool shares, TimePoint deadline,
                  std::unique_ptr<DeviceCollectives>* made);
  // Lets the ranks of each node share the buffers for staging, if all nodes can; otherwise adds why
  // not to `reason`.
  Status ShareBuffers(Gpu* own, TimePoint deadline, std::string* reason);
  Status MakeHierarchical(const GpuMemory& own, bool shares, TimePoint deadline,
                          std::unique_ptr<DeviceCollectives>* made);

  Transport* const transport_;
  const GpuOptions options_;
  StagedReduction staged_;
  bool has_chosen_ = false;
  Nccl nccl_ = {};
  std::unique_ptr<DirectReduction> direct_;  // null: everything is staged
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_GPU_GPU_REDUCTION_H_
