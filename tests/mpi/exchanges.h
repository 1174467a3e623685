// The part of engine_mpi that exchanges GPU memory.

#ifndef TFMPI_TESTS_MPI_EXCHANGES_H_
#define TFMPI_TESTS_MPI_EXCHANGES_H_

#include "tensorflow_patches/core/transport/transport.h"

namespace tfmpi {

// Runs exchanges of all sizes on all lanes at the same time, with host memory instead of a GPU's:
// an MPI that only claims to be CUDA-aware (says_cuda.cc) does not know the difference. Prints the
// result; exits if it is wrong.
void CheckExchanges(Transport& transport);

}  // namespace tfmpi

#endif  // TFMPI_TESTS_MPI_EXCHANGES_H_
