// Training whose ranks are killed at seeded moments, until few are left.

#ifndef TFMPI_TESTS_MPI_STORM_H_
#define TFMPI_TESTS_MPI_STORM_H_

#include <cstdint>

#include "tensorflow_patches/core/engine/engine.h"

namespace tfmpi {

// Prints "RESULT {json}" on the ranks that are left: how many these are, a digest of every average
// that it has had, and how far its model is from one that was trained without deaths.
void TrainInStorm(Engine& engine, uint64_t seed);

}  // namespace tfmpi

#endif  // TFMPI_TESTS_MPI_STORM_H_
