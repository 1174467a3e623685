// Reductions between GPUs by NCCL.
//
// Its communicator does not block: every wait for other ranks ends at a deadline of ours, where it
// is aborted.

#ifndef TFMPI_CORE_DEVICE_NCCL_H_
#define TFMPI_CORE_DEVICE_NCCL_H_

#include <memory>
#include <string>

#include "tensorflow_patches/core/base/clock.h"
#include "tensorflow_patches/core/device/collectives.h"
#include "tensorflow_patches/core/device/driver_api.h"
#include "tensorflow_patches/core/device/nccl_api.h"

namespace tfmpi {

struct NcclOptions {
  // Of the GPU that this rank works on: ContextOf (driver.h) of one of its streams.
  const Driver* driver = nullptr;
  CudaContext context = nullptr;
  int rank = 0;
  int size = 1;
  // One rank's NewNcclId, broadcast by the caller.
  NcclId id = {};
  // By when all ranks must have called MakeNcclCollectives.
  TimePoint deadline;
  // At most so many of the GPU's multiprocessors; 0: NCCL decides. Ranks that share a GPU must
  // leave each other some.
  int max_ctas = 0;
};

Status NewNcclId(const Nccl& nccl, NcclId* id);

// Waits until all ranks have come, or `deadline`. `nccl` must outlive what it makes.
Status MakeNcclCollectives(const Nccl& nccl, const NcclOptions& options,
                           std::unique_ptr<DeviceCollectives>* collectives);

}  // namespace tfmpi

#endif  // TFMPI_CORE_DEVICE_NCCL_H_
