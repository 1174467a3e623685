// A training whose ranks are killed at seeded moments, until few remain.

#ifndef TFMPI_TESTS_MPI_STORM_H_
#define TFMPI_TESTS_MPI_STORM_H_

#include <cstdint>

#include "tensorflow_patches/core/engine/engine.h"

namespace tfmpi {

// Prints "RESULT {json}" on the remaining ranks: their number, a digest of all averages, and the
// distance of the model from one that was trained without deaths.
void TrainInStorm(Engine& engine, uint64_t seed);

}  // namespace tfmpi

#endif  // TFMPI_TESTS_MPI_STORM_H_
