// Carries out responses whose tensors lie on GPUs: among the GPUs where they can (NCCL), on the one
// that all ranks share, by an MPI that takes memory of GPUs, else staged through the hosts.
//
// The ranks choose once, together, at the first allreduce of this kind: a rank says which GPU it
// has, which NCCL it finds and what its MPI takes, and all judge alike (core/device/choice.h). A
// response that not all ranks take part in, or of a type that cannot go so, is staged all the same.
// Communication thread only.

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

// Called by all ranks: `data` becomes that of rank `first`, which may be another one in each node.
Status TellFromFirst(Transport* transport, int first, void* data, size_t bytes, TimePoint deadline);

class GpuReduction {
 public:
  GpuReduction(Transport* transport, GpuOptions options)
      : transport_(transport),
        options_(std::move(options)),
        staged_(transport, options_.staged_chunk_bytes) {}

  // As Fusion::Allreduce, whose result is multiplied by `scale`.
  Status Allreduce(const std::vector<FusionEntry>& entries, int contributors, double scale,
                   TimePoint deadline);
  Status Broadcast(const FusionEntry& entry, TimePoint deadline) {
    return staged_.Broadcast(entry, deadline);
  }
  // Of what is under way; see DirectReduction.
  Status Check(TimePoint now) { return direct_ != nullptr ? direct_->Check(now) : Status(); }
  // By all ranks, before they end together: what each still reads of another's memory has been read
  // when it returns.
  Status Drain(TimePoint deadline);
  // After a failure.
  void Abort() {
    if (direct_ != nullptr) direct_->Abort();
  }

 private:
  Status Choose(const GpuMemory* own, TimePoint deadline);
  DeviceFacts FactsOf(const GpuMemory* own);
  Status Gather(const DeviceFacts& own, std::vector<DeviceFacts>* all, TimePoint deadline);
  // Sets direct_ on all ranks, or on none and says why.
  Status MakeDirect(DeviceWay way, const GpuMemory& own, bool shares, TimePoint deadline,
                    std::string* why_not);
  // Of the ranks of this node, or of all.
  Status MakeNccl(const GpuMemory& own, bool in_node, bool shares, TimePoint deadline,
                  std::unique_ptr<DeviceCollectives>* made);
  Status ShareBuffers(Gpu* own, TimePoint deadline, std::string* reason);
  Status MakeHierarchical(const GpuMemory& own, bool shares, TimePoint deadline,
                          std::unique_ptr<DeviceCollectives>* made);
  // Whether all ranks say so.
  Status Agree(bool well, bool* all, TimePoint deadline);

  Transport* const transport_;
  const GpuOptions options_;
  StagedReduction staged_;
  bool has_chosen_ = false;
  Nccl nccl_ = {};
  std::unique_ptr<DirectReduction> direct_;  // null: all is staged
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_GPU_GPU_REDUCTION_H_
