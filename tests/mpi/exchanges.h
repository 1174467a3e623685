// What engine_mpi does with messages of GPUs' memory.

#ifndef TFMPI_TESTS_MPI_EXCHANGES_H_
#define TFMPI_TESTS_MPI_EXCHANGES_H_

#include "tensorflow_patches/core/transport/transport.h"

namespace tfmpi {

// Exchanges of all sizes, on all lanes at once, with the host's memory in place of a GPU's: for an
// MPI that says that it takes GPUs' (says_cuda.cc), it is all one. Prints the result; ends the
// process where something is wrong.
void CheckExchanges(Transport& transport);

}  // namespace tfmpi

#endif  // TFMPI_TESTS_MPI_EXCHANGES_H_
