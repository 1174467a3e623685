// Compares the engine with plain MPI, using the MPI that the transport library has started.

#ifndef TFMPI_TESTS_MPI_TIMINGS_H_
#define TFMPI_TESTS_MPI_TIMINGS_H_

#include "tensorflow_patches/core/engine/engine.h"

namespace tfmpi {

// Collective; rank 0 prints the table.
void PrintTimings(Engine& engine);

}  // namespace tfmpi

#endif  // TFMPI_TESTS_MPI_TIMINGS_H_
