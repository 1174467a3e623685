// The options for reductions of data on GPUs.

#ifndef TFMPI_CORE_GPU_GPU_OPTIONS_H_
#define TFMPI_CORE_GPU_GPU_OPTIONS_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "tensorflow_patches/core/base/clock.h"
#include "tensorflow_patches/core/base/sizes.h"
#include "tensorflow_patches/core/device/choice.h"
#include "tensorflow_patches/core/device/collectives.h"
#include "tensorflow_patches/core/device/gpu.h"
#include "tensorflow_patches/core/transport/transport.h"

namespace tfmpi {

struct GpuOptions {
  DeviceTransport wanted = DeviceTransport::kAuto;
  BetweenNodes between;
  std::string nccl_library = "libnccl.so.2";
  bool shares_gpu = false;  // NCCL_MULTI_RANK_GPU_ENABLE, as NCCL will read it
  bool cray_gpus = false;   // MPICH_GPU_SUPPORT_ENABLED: Cray's MPI requires it for GPU memory
  // Tests use smaller chunks.
  size_t staged_chunk_bytes = kGpuChunkBytes;
  size_t shared_chunk_bytes = kSharedGpuChunkBytes;
  size_t mpi_chunk_bytes = kGpuToGpuChunkBytes;
  // Prints a line for people, once, on the communication thread.
  std::function<void(const std::string&)> log;
  // Called once, on the communication thread, when the ranks have chosen; never for a single rank.
  // `staged`: whether all data is staged.
  std::function<void(bool staged)> chosen;

  // For tests: replaces what this rank reports, and NCCL's collectives of its node or of all ranks.
  std::function<DeviceFacts(const Gpu& gpu)> facts;
  std::function<Status(Gpu* gpu, TimePoint deadline, std::unique_ptr<DeviceCollectives>* made)>
      make;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_GPU_GPU_OPTIONS_H_
