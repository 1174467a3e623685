// The kernels that sum the data of ranks on one GPU, as PTX text: the driver compiles it for the
// GPU at hand, so neither the wheel nor its build needs a GPU compiler.

#ifndef TFMPI_CORE_DEVICE_SUM_KERNELS_H_
#define TFMPI_CORE_DEVICE_SUM_KERNELS_H_

#include <cstddef>
#include <string>

#include "tensorflow_patches/core/base/types.h"

namespace tfmpi {

// How much a thread processes at a time.
enum class Grain {
  kElement,  // one element, with the alignment of its type
  kWide,     // 16 bytes, aligned to 16
};

// A module with a kernel for each real floating type and grain, for this number of sources; for
// GPUs of compute capability 6.0 and newer. A kernel's parameters are: the address of the result;
// the number of grains; the addresses of the sources; their scales, as doubles. Any one-dimensional
// grid and block processes all grains.
std::string SumKernels(size_t sources);
std::string SumKernelName(DataType type, Grain grain);
size_t GrainBytes(DataType type, Grain grain);

}  // namespace tfmpi

#endif  // TFMPI_CORE_DEVICE_SUM_KERNELS_H_
