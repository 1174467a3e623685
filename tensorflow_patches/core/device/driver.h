// The CUDA driver's GPU: where GpuOf (gpu.h) gets it from, for who has no stream yet.

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

// GPU `ordinal` of those that this process sees, in its primary context, which TensorFlow uses too,
// and a new stream of it, which is the caller's. For tests and the doctor. The context stays for as
// long as the process lives.
Status OpenGpu(int ordinal, Gpu** gpu, GpuStream* stream);

// How many this process sees.
Status CountGpus(int* count);

// Of each of them, in order, its PCI address and its name. Makes no context.
Status ListGpus(std::vector<std::pair<std::string, std::string>>* gpus);

// The context of a stream that the driver knows, for libraries that work in the current one.
Status ContextOf(GpuStream stream, const Driver** driver, CudaContext* context);

// For those above, and for tests with a driver of their own.
Status MakeDriverGpu(const Driver& driver, CudaContext context, std::unique_ptr<Gpu>* gpu);

}  // namespace tfmpi

#endif  // TFMPI_CORE_DEVICE_DRIVER_H_
