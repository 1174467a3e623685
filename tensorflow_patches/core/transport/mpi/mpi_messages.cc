// Control messages: small, between any two ranks.

#include <iterator>
#include <list>
#include <string>

#include "tensorflow_patches/core/transport/mpi/mpi_state.h"

namespace tfmpi::mpi {
namespace {

// Frees the buffers of completed sends; called often enough to keep their number small.
int ReapSends(char* error) {
  std::list<Outgoing>& outgoing = GetState().outgoing;
  for (auto it = outgoing.begin(); it != outgoing.end();) {
    int done = 0;
    TFMPI_RETURN_IF_ERROR("MPI_Test", MPI_Test(&it->request, &done, MPI_STATUS_IGNORE));
    it = done ? outgoing.erase(it) : std::next(it);
  }
  return kTfMpiOk;
}

}  // namespace

int Send(int32_t peer, const void* data, size_t bytes, char* error) {
  State& state = GetState();
  state.outgoing.push_back({std::string(static_cast<const char*>(data), bytes), MPI_REQUEST_NULL});
  Outgoing& message = state.outgoing.back();
  TFMPI_RETURN_IF_ERROR("MPI_Isend",
                        MPI_Isend(message.bytes.data(), static_cast<int>(bytes), MPI_BYTE, peer,
                                  kControlTag, state.control, &message.request));
  return ReapSends(error);
}

int Probe(int32_t* source, size_t* bytes, char* error) {
  State& state = GetState();
  *source = -1;
  if (const int result = ReapSends(error); result != kTfMpiOk) return result;
  int found = 0;
  MPI_Status status;
  TFMPI_RETURN_IF_ERROR("MPI_Improbe", MPI_Improbe(MPI_ANY_SOURCE, kControlTag, state.control,
                                                   &found, &state.probed, &status));
  if (!found) return kTfMpiOk;
  int count = 0;
  MPI_Get_count(&status, MPI_BYTE, &count);
  *source = status.MPI_SOURCE;
  *bytes = static_cast<size_t>(count);
  return kTfMpiOk;
}

int Receive(void* data, size_t bytes, char* error) {
  State& state = GetState();
  // Probe has already matched the message, so the peer has called Send; but only further calls of
  // MPI by the peer complete a large message.
  MPI_Request request = MPI_REQUEST_NULL;
  TFMPI_RETURN_IF_ERROR(
      "MPI_Imrecv", MPI_Imrecv(data, static_cast<int>(bytes), MPI_BYTE, &state.probed, &request));
  return Wait(&request, DeadlineIn(60), "receiving a control message", error);
}

}  // namespace tfmpi::mpi
