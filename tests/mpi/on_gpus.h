// The part of engine_mpi that averages gradients on GPUs.

#ifndef TFMPI_TESTS_MPI_ON_GPUS_H_
#define TFMPI_TESTS_MPI_ON_GPUS_H_

#include <memory>

#include "tensorflow_patches/core/engine/engine.h"
#include "tensorflow_patches/core/transport/transport.h"

namespace tfmpi {

// Computes averages and sums of tensors on a simulated GPU per rank, with a CUDA-aware MPI
// (bouncing_messages.h). Prints the transport that was used; exits if a result is wrong.
void ReduceOnGpus(std::unique_ptr<Transport> transport, EngineOptions options);

}  // namespace tfmpi

#endif  // TFMPI_TESTS_MPI_ON_GPUS_H_
