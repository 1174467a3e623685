// Reductions between GPUs by NCCL.
//
// Its communicator is non-blocking: every wait for other ranks ends at the caller's deadline, after
// which the communicator can only be aborted.

#ifndef TFMPI_CORE_DEVICE_NCCL_H_
#define TFMPI_CORE_DEVICE_NCCL_H_

#include <memory>

#include "tensorflow_patches/core/base/clock.h"
#include "tensorflow_patches/core/device/collectives.h"
#include "tensorflow_patches/core/device/driver_api.h"
#include "tensorflow_patches/core/device/nccl_api.h"

namespace tfmpi {

struct NcclOptions {
  // Of this rank's GPU: what ContextOf (driver.h) returns for one of its streams.
  const Driver* driver = nullptr;
  CudaContext context = nullptr;
  int rank = 0;
  int size = 1;
  // What NewNcclId has returned on one rank. The caller broadcasts it.
  NcclId id = {};
  // All ranks must have called MakeNcclCollectives by then.
  TimePoint deadline;
  // The maximum number of thread blocks of NCCL's kernels; 0: NCCL decides. Ranks that share a GPU
  // must leave room for each other's.
  int max_ctas = 0;
};

Status NewNcclId(const Nccl& nccl, NcclId* id);

// Waits for all ranks, at most until `deadline`. `nccl` must outlive the result.
Status MakeNcclCollectives(const Nccl& nccl, const NcclOptions& options,
                           std::unique_ptr<DeviceCollectives>* collectives);

}  // namespace tfmpi

#endif  // TFMPI_CORE_DEVICE_NCCL_H_
