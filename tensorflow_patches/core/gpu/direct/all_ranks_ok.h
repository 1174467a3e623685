// What the ways between GPUs share.

#ifndef TFMPI_CORE_GPU_DIRECT_ALL_RANKS_OK_H_
#define TFMPI_CORE_GPU_DIRECT_ALL_RANKS_OK_H_

#include "tensorflow_patches/core/base/clock.h"
#include "tensorflow_patches/core/base/status.h"
#include "tensorflow_patches/core/base/types.h"
#include "tensorflow_patches/core/transport/transport.h"

namespace tfmpi {

// By all ranks: this rank's own failure, or that of another one, which is told as `elsewhere`.
inline Status AllRanksOk(Transport* transport, const Status& own, const char* elsewhere,
                         TimePoint deadline) {
  float all = own.ok() ? 1 : 0;
  const Status status =
      transport->Allreduce(&all, &all, {1, DataType::kFloat32, ReduceOp::kMin, 1}, deadline);
  if (!status.ok()) return status;
  return !own.ok() || all == 1 ? own : Status(Code::kUnavailable, elsewhere);
}

// What a complex number is two of; other types as they are.
inline DataType RealOf(DataType type) {
  if (type == DataType::kComplex64) return DataType::kFloat32;
  if (type == DataType::kComplex128) return DataType::kFloat64;
  return type;
}

}  // namespace tfmpi

#endif  // TFMPI_CORE_GPU_DIRECT_ALL_RANKS_OK_H_
