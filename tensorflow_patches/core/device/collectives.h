// Reductions that the GPUs of all ranks do among themselves. The seam between the engine and what
// does them: NCCL (nccl.h), one GPU that all ranks share (core/gpu/direct/peer_collectives.h), a
// CUDA-aware MPI (core/gpu/direct/cuda_aware_collectives.h), NCCL inside nodes and the hosts
// between them (core/gpu/direct/hierarchical_collectives.h), and in tests threads
// (tests/core/device/simulated_collectives.h).

#ifndef TFMPI_CORE_DEVICE_COLLECTIVES_H_
#define TFMPI_CORE_DEVICE_COLLECTIVES_H_

#include <cstddef>
#include <string>

#include "tensorflow_patches/core/base/status.h"
#include "tensorflow_patches/core/base/types.h"
#include "tensorflow_patches/core/device/gpu.h"

namespace tfmpi {

// Whether NCCL has it: no 16-bit integers and bools, and complex numbers are two reals, so sums and
// averages only.
bool GpusReduce(DataType type, ReduceOp op);

// One rank's, of one group. Communication thread only. All ranks make the same calls, in the same
// order.
class DeviceCollectives {
 public:
  virtual ~DeviceCollectives() = default;

  // For people: "NCCL 2.32.3".
  virtual std::string description() const = 0;

  // Whether Allreduce takes it; the rest is the caller's to stage through the host. The same on all
  // ranks.
  virtual bool Takes(DataType type, ReduceOp op) const { return GpusReduce(type, op); }

  // Whether it records the time of its stages itself (observability/timeline.h).
  virtual bool records() const { return false; }

  // Enqueued: `count` elements of this GPU's memory; `in` may be `out`. kAverage: each rank's
  // elements times its own `scale`, which divides by the contributors, then their sum: ranks may
  // weigh differently, and a kSum of real numbers is the same with 1. 0 times infinity is not a
  // number: a rank that contributes nothing hands in zeros. Other reductions, and integers, know no
  // `scale` but 1.
  //
  // NCCL keeps half and bfloat16 on their way: `scale`, each product and each partial sum are
  // rounded, where other reductions round once.
  //
  // May wait until it is enqueued, which the first ones do for all ranks to have called it; no
  // longer than until `deadline`.
  virtual Status Allreduce(const void* in, void* out, size_t count, DataType type, ReduceOp op,
                           double scale, GpuStream stream, TimePoint deadline) = 0;

  // Enqueued, as Allreduce: the two halves of it. ReduceScatter: `in` has a share of `count`
  // elements for each rank of the group, in their order, and `out` gets this rank's share of the
  // result; it may be its place in `in`. Allgather: `in` is this rank's share, and `out` gets all;
  // `in` may be its place there. Where it has none they fail.
  virtual Status ReduceScatter(const void*, void*, size_t /*count*/, DataType, ReduceOp,
                               double /*scale*/, GpuStream, TimePoint /*deadline*/) {
    return Status(Code::kInvalidArgument, description() + " has no reduce-scatter");
  }
  virtual Status Allgather(const void*, void*, size_t /*count*/, DataType, GpuStream,
                           TimePoint /*deadline*/) {
    return Status(Code::kInvalidArgument, description() + " has no allgather");
  }

  // Fails if something has gone wrong since, here or at a rank that this one heard of: to be asked
  // while an event behind a reduction does not come. A rank that is lost may be noticed by nobody:
  // the caller keeps a deadline too. After an error, of this or of Allreduce, only Abort helps.
  virtual Status Poll() = 0;

  // Ends what is enqueued, whose results are undefined then. Nothing can be reduced after it.
  virtual void Abort() = 0;

  // The end in order, when nothing is under way on any rank: first each closes what it has open of
  // the others, then each hears that all have. Without it the others' is left alone.
  virtual void Close() {}
  virtual void Closed() {}

  // Memory of the GPU from which and to which reductions are fastest.
  virtual Status NewBuffer(size_t bytes, void** memory) = 0;
  // Waits for what uses it.
  virtual void DeleteBuffer(void* memory) = 0;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_DEVICE_COLLECTIVES_H_
