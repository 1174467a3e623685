// The MPI transport. Only mpi_*.cc, mpi_state.h, pairwise_allreduce.h and ulfm.h include mpi.h.
// They are compiled into one library per MPI ABI (BUILD.bazel); python/_src/mpi/library.py chooses
// one of them.
//
// No two of our threads call MPI at the same time (plugin.h), so MPI_THREAD_SERIALIZED is enough,
// unless the script calls MPI, too (mpi4py). Private communicators separate control messages and
// data from each other and from the script's messages. Waits poll (Backoff), because a blocking
// call could not end at its deadline.

#include "tensorflow_patches/core/transport/mpi/mpi_state.h"
#include "tensorflow_patches/core/transport/mpi/plugin.h"

extern "C" __attribute__((visibility("default"))) const TfMpiTransport* tfmpi_transport_get(void) {
  using namespace tfmpi::mpi;
  static constexpr TfMpiTransport kTransport = {TFMPI_TRANSPORT_ABI,
                                                Init,
                                                SplitRanks,
                                                MapNode,
                                                Send,
                                                Probe,
                                                Receive,
                                                Allreduce,
                                                PlainAllreduce,
                                                Allgather,
                                                Broadcast,
                                                Finalize,
                                                CanShrink,
                                                HasFailedRank,
                                                Agree,
                                                Regroup,
                                                TakesGpuMemory,
                                                StartExchange,
                                                TestExchange};
  return &kTransport;
}
