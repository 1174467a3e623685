// The kernels that add up what ranks hold on one GPU, as text in PTX: the driver compiles it for
// the GPU at hand, so that neither the wheel nor its build needs a compiler for GPUs.
//
// Pure functions.

#ifndef TFMPI_CORE_DEVICE_SUM_KERNELS_H_
#define TFMPI_CORE_DEVICE_SUM_KERNELS_H_

#include <cstddef>
#include <string>

#include "tensorflow_patches/core/base/types.h"

namespace tfmpi {

// How much a thread takes at a time.
enum class Grain {
  kElement,  // of memory at any address its type allows
  kWide,     // 16 bytes, at multiples of 16
};

// A module with a kernel for each real floating type and grain, for so many sources: for GPUs of
// compute capability 6.0 on. A kernel's parameters, in this order: the address of the result; how
// many grains; the addresses of the sources; their scales, as doubles. Any grid and block of one
// dimension do all of it.
std::string SumKernels(size_t sources);
std::string SumKernelName(DataType type, Grain grain);
// Of one grain.
size_t GrainBytes(DataType type, Grain grain);

}  // namespace tfmpi

#endif  // TFMPI_CORE_DEVICE_SUM_KERNELS_H_
