
#include "tensorflow_patches/core/transport/mpi/mpi_state.h"

#include <algorithm>
#include <chrono>
#include <cstdio>

namespace tfmpi::mpi {

State& GetState() {
  static State* state = new State;  // never destroyed: MPI may outlive static destruction
  return *state;
}

int Fail(const char* what, int mpi_error, char* error) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(mpi_error, text, &length);
  std::snprintf(error, TFMPI_ERROR_BYTES, "%s failed: %.400s", what, text);
  return kTfMpiFailed;
}

int TimedOut(const char* what, char* error) {
  std::snprintf(error, TFMPI_ERROR_BYTES,
                "%s did not end in time: a peer has died or does not take part", what);
  return kTfMpiTimeout;
}

int Wait(MPI_Request* request, TimePoint deadline, const char* what, char* error) {
  Backoff backoff;
  while (true) {
    int done = 0;
    TFMPI_RETURN_IF_ERROR(what, MPI_Test(request, &done, MPI_STATUS_IGNORE));
    if (done) return kTfMpiOk;
    if (Clock::now() >= deadline) return TimedOut(what, error);
    backoff.Pause();
  }
}

TimePoint DeadlineIn(double seconds) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(
                            std::chrono::duration<double>(std::min(seconds, 1e8)));
}

}  // namespace tfmpi::mpi
