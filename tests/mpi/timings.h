// How long the engine takes beside plain MPI, on the MPI that the transport library has started.

#ifndef TFMPI_TESTS_MPI_TIMINGS_H_
#define TFMPI_TESTS_MPI_TIMINGS_H_

#include "tensorflow_patches/core/engine/engine.h"

namespace tfmpi {

// A collective call; rank 0 prints the table.
void PrintTimings(Engine& engine);

}  // namespace tfmpi

#endif  // TFMPI_TESTS_MPI_TIMINGS_H_
