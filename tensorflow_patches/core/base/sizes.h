// The sizes at which tensors are put together or cut up, and why.

#ifndef TFMPI_CORE_BASE_SIZES_H_
#define TFMPI_CORE_BASE_SIZES_H_

#include <cstddef>

namespace tfmpi {

// A tensor of this size travels alone, from where it lies: copying it into a buffer and out would
// cost more than a transfer of its own.
inline constexpr size_t kAloneBytes = size_t{256} << 10;

}  // namespace tfmpi

#endif  // TFMPI_CORE_BASE_SIZES_H_
