// Whether an operation has succeeded on all ranks, for the collectives between GPUs.

#ifndef TFMPI_CORE_GPU_DIRECT_ALL_RANKS_OK_H_
#define TFMPI_CORE_GPU_DIRECT_ALL_RANKS_OK_H_

#include "tensorflow_patches/core/base/clock.h"
#include "tensorflow_patches/core/base/status.h"
#include "tensorflow_patches/core/base/types.h"
#include "tensorflow_patches/core/transport/transport.h"

namespace tfmpi {

// Called by all ranks: sets *all to whether `own` is true on all of them.
inline Status IsTrueOnAllRanks(Transport* transport, bool own, TimePoint deadline, bool* all) {
  float answer = own ? 1 : 0;
  const Status status =
      transport->Allreduce(&answer, &answer, {1, DataType::kFloat32, ReduceOp::kMin, 1}, deadline);
  *all = answer == 1;
  return status;
}

// Called by all ranks: returns this rank's own failure, or an error with the message `elsewhere` if
// only other ranks have failed.
inline Status AllRanksOk(Transport* transport, const Status& own, TimePoint deadline,
                         const char* elsewhere = "another rank could not prepare it") {
  bool all = false;
  TFMPI_RETURN_IF_NOT_OK(IsTrueOnAllRanks(transport, own.ok(), deadline, &all));
  return !own.ok() || all ? own : Status(Code::kUnavailable, elsewhere);
}

}  // namespace tfmpi

#endif  // TFMPI_CORE_GPU_DIRECT_ALL_RANKS_OK_H_
