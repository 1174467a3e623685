// What engine_mpi does with gradients on GPUs.

#ifndef TFMPI_TESTS_MPI_ON_GPUS_H_
#define TFMPI_TESTS_MPI_ON_GPUS_H_

#include <memory>

#include "tensorflow_patches/core/engine/engine.h"
#include "tensorflow_patches/core/transport/transport.h"

namespace tfmpi {

// Averages and sums of tensors on a simulated GPU of each rank, by an MPI that says that it takes
// memory of GPUs, and does (bouncing_messages.h). Prints which way they went; ends the process
// where something is wrong.
void ReduceOnGpus(std::unique_ptr<Transport> transport, EngineOptions options);

}  // namespace tfmpi

#endif  // TFMPI_TESTS_MPI_ON_GPUS_H_
