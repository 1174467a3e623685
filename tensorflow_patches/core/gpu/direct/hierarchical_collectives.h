// Reductions in which a rank exchanges only its share with other nodes: the GPUs of a node reduce
// among themselves, the hosts exchange the shares, and the GPUs distribute the result.
//
//   GPUs of a node         reduce-scatter | reduced_ ..................... wait landed | allgather
//   communication thread                    await reduced_ | share -> host, rail, host -> share
//
// If the number of elements is not a multiple of the node's ranks, a few are left at the end: all
// ranks of the node reduce them, and each sends these sums along with its share. Every rail reduces
// the same sums, so all ranks get the same bits.
//
// Communication thread only; it waits for the GPU once per reduction, and for the rail. Nothing on
// a GPU waits for another node, so the transport detects the death of a rank there.

#ifndef TFMPI_CORE_GPU_DIRECT_HIERARCHICAL_COLLECTIVES_H_
#define TFMPI_CORE_GPU_DIRECT_HIERARCHICAL_COLLECTIVES_H_

#include <memory>
#include <string>

#include "tensorflow_patches/core/device/collectives.h"
#include "tensorflow_patches/core/device/gpu.h"
#include "tensorflow_patches/core/gpu/staged/staged_reduction.h"
#include "tensorflow_patches/core/transport/transport.h"

namespace tfmpi {

class HierarchicalCollectives : public DeviceCollectives {
 public:
  // `inside`: the collectives of this node, by local rank. `rail`: Transport::rail(), which gets
  // at most `chunk_bytes` at a time.
  HierarchicalCollectives(Gpu* gpu, std::unique_ptr<DeviceCollectives> inside,
                          const Topology& topology, Transport* rail, size_t chunk_bytes);
  ~HierarchicalCollectives() override;
  HierarchicalCollectives(const HierarchicalCollectives&) = delete;
  HierarchicalCollectives& operator=(const HierarchicalCollectives&) = delete;

  std::string description() const override;
  bool Takes(DataType type, ReduceOp op) const override { return inside_->Takes(type, op); }
  bool records() const override { return true; }
  // Inside the node like `inside`. Between nodes, half and bfloat16 are summed in float32. All
  // ranks pass the same `op`, since averages of float32 may be rounded between nodes, and sums may
  // not.
  Status Allreduce(const void* in, void* out, size_t count, DataType type, ReduceOp op,
                   double scale, GpuStream stream, TimePoint deadline) override;
  Status Poll() override { return failure_.ok() ? inside_->Poll() : failure_; }
  void Abort() override;
  void Close() override { inside_->Close(); }
  void Closed() override { inside_->Closed(); }
  Status NewBuffer(size_t bytes, void** memory) override {
    return inside_->NewBuffer(bytes, memory);
  }
  void DeleteBuffer(void* memory) override { inside_->DeleteBuffer(memory); }

 private:
  struct Shares;

  Status Reduce(const void* in, const Shares& shares, ReduceOp op, double scale, GpuStream stream,
                TimePoint deadline);
  Status AwaitReduced(TimePoint deadline);
  Status Exchange(const Shares& shares, ReduceOp op, GpuStream stream, TimePoint deadline);

  Gpu* const gpu_;
  const std::unique_ptr<DeviceCollectives> inside_;
  const size_t rank_;  // in the node
  const size_t size_;  // of the node
  GpuEvent reduced_ = nullptr;
  StagedReduction between_;
  Status failure_;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_GPU_DIRECT_HIERARCHICAL_COLLECTIVES_H_
