// The CUDA driver's GPUs: what driver.cc offers besides GpuOf (gpu.h), for code without a stream.

#ifndef TFMPI_CORE_DEVICE_DRIVER_H_
#define TFMPI_CORE_DEVICE_DRIVER_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow_patches/core/base/status.h"
#include "tensorflow_patches/core/device/driver_api.h"
#include "tensorflow_patches/core/device/gpu.h"

namespace tfmpi {

// For tests: opens GPU `ordinal` of those visible to this process, in its primary context, which
// TensorFlow uses, too, and which is never released. Creates a stream, which the caller owns.
Status OpenGpu(int ordinal, Gpu** gpu, GpuStream* stream);

// The number of GPUs visible to this process.
Status CountGpus(int* count);

// The PCI address and the name of each, in order. Creates no context.
Status ListGpus(std::vector<std::pair<std::string, std::string>>* gpus);

// The context of a stream, for libraries that work in the current context.
Status ContextOf(GpuStream stream, const Driver** driver, CudaContext* context);

// The Gpu of a context, for GpuOf and OpenGpu, and for tests with a fake driver. `driver` outlives
// the result.
Status MakeDriverGpu(const Driver& driver, CudaContext context, std::unique_ptr<Gpu>* gpu);

}  // namespace tfmpi

#endif  // TFMPI_CORE_DEVICE_DRIVER_H_
