// The ranks with one local rank, one per node; float32 sums between them may be rounded.

#ifndef TFMPI_CORE_TRANSPORT_RAIL_H_
#define TFMPI_CORE_TRANSPORT_RAIL_H_

#include <memory>

#include "tensorflow_patches/core/transport/transport.h"

namespace tfmpi {

// Returns `between`, with float32 sums rounded to `wire`: kFloat16 or kBfloat16; kFloat32 rounds
// nothing. Null if `between` is null.
std::unique_ptr<Transport> MakeRail(std::unique_ptr<Transport> between, DataType wire);

}  // namespace tfmpi

#endif  // TFMPI_CORE_TRANSPORT_RAIL_H_
