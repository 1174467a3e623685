// Reductions that the GPUs of all ranks perform among themselves. This is the interface between the
// engine and its implementations: NCCL (nccl.h), one GPU that all ranks share
// (core/gpu/direct/peer_collectives.h), a CUDA-aware MPI
// (core/gpu/direct/cuda_aware_collectives.h), NCCL inside nodes with the hosts between them
// (core/gpu/direct/hierarchical_collectives.h), and threads in tests
// (tests/core/device/simulated_collectives.h).

#ifndef TFMPI_CORE_DEVICE_COLLECTIVES_H_
#define TFMPI_CORE_DEVICE_COLLECTIVES_H_

#include <cstddef>
#include <string>

#include "tensorflow_patches/core/base/status.h"
#include "tensorflow_patches/core/base/types.h"
#include "tensorflow_patches/core/device/gpu.h"

namespace tfmpi {

// Whether NCCL can reduce such data: no 16-bit integers, no bools, no averages of integers. Complex
// numbers are sent as two reals, so only kSum and kAverage.
bool NcclSupports(DataType type, ReduceOp op);

// A communicator: one rank's handle for a group of ranks, which all make the same calls in the same
// order. Communication thread only.
class DeviceCollectives {
 public:
  virtual ~DeviceCollectives() = default;

  // For people: "NCCL 2.32.3".
  virtual std::string description() const = 0;

  // Whether Allreduce accepts such data: the same on all ranks. The caller must stage other data
  // through the host.
  virtual bool Takes(DataType type, ReduceOp op) const { return NcclSupports(type, op); }

  // Whether this object records the time of its stages itself (core/observability/timeline.h).
  virtual bool records() const { return false; }

  // Enqueues a reduction of `count` elements in this GPU's memory; `in` may equal `out`. kAverage:
  // each rank's elements are multiplied by its own `scale`, which includes the division by the
  // number of contributors, then summed. So ranks may have different weights. A kSum of
  // floating-point numbers is a kAverage with scale 1: some ranks may pass it where others pass
  // kAverage. Since 0 times infinity is NaN, a rank that contributes nothing passes zeros. Other
  // reductions, and integers, only accept a `scale` of 1.
  //
  // NCCL sends half and bfloat16 unchanged: `scale`, each product and each partial sum are rounded,
  // whereas GpuSum and the hosts round once.
  //
  // May wait, at most until `deadline`, for the GPU or for all ranks (NCCL: in the first calls).
  virtual Status Allreduce(const void* in, void* out, size_t count, DataType type, ReduceOp op,
                           double scale, GpuStream stream, TimePoint deadline) = 0;

  // The two halves of Allreduce, enqueued like it. ReduceScatter: `in` has a share of `count`
  // elements for each rank of the group, in rank order; `out` receives this rank's share of the
  // result and may be its place in `in`. Allgather: `in` is this rank's share, and may be its place
  // in `out`, which receives all shares. They fail if the implementation does not support them.
  virtual Status ReduceScatter(const void*, void*, size_t /*count*/, DataType, ReduceOp,
                               double /*scale*/, GpuStream, TimePoint /*deadline*/) {
    return Status(Code::kInvalidArgument, description() + " has no reduce-scatter");
  }
  virtual Status Allgather(const void*, void*, size_t /*count*/, DataType, GpuStream,
                           TimePoint /*deadline*/) {
    return Status(Code::kInvalidArgument, description() + " has no allgather");
  }

  // Fails if an enqueued reduction has failed, on any rank as far as this one can tell. Call it
  // while waiting for an event after a reduction. A lost rank may go unnoticed, so the caller also
  // needs a deadline. After an error of Poll or a reduction, call Abort; then only DeleteBuffer and
  // the destructor.
  virtual Status Poll() = 0;

  // Ends everything enqueued; the results are undefined. Nothing can be reduced after it.
  virtual void Abort() = 0;

  // For an orderly end, when no rank has work in flight. Close releases the memory of other ranks
  // that this one has opened. Call Closed once every rank has called Close: otherwise the
  // destructor does not free the memory that others may have open.
  virtual void Close() {}
  virtual void Closed() {}

  // GPU memory with which reductions are fastest.
  virtual Status NewBuffer(size_t bytes, void** memory) = 0;
  // Waits for work that uses it.
  virtual void DeleteBuffer(void* memory) = 0;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_DEVICE_COLLECTIVES_H_
