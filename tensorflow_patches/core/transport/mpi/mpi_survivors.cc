// TF_MPI_FAULT=shrink: how survivors regroup after a death, using ULFM.

#include <cstdio>
#include <list>
#include <utility>

#include "tensorflow_patches/core/transport/mpi/mpi_state.h"
#include "tensorflow_patches/core/transport/mpi/pairwise_allreduce.h"
#include "tensorflow_patches/core/transport/mpi/ulfm.h"

namespace tfmpi::mpi {

int CanShrink(char* error) {
  const char* why = nullptr;
  if (!GetState().ulfm.Load()) {
    why = "this MPI has no fault tolerance (ULFM); Open MPI 5 has it";
  } else if (!Ulfm::IsOn()) {
    why = "the job was started without fault tolerance (mpirun --with-ft ulfm)";
  }
  if (why == nullptr) {
    // A death is an error of these communicators, too, and would end the job.
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    return kTfMpiOk;
  }
  std::snprintf(error, TFMPI_ERROR_BYTES, "%s", why);
  return kTfMpiFailed;
}

int HasFailedRank() {
  const State& state = GetState();
  int found = 0;
  // MPI learns of deaths and revocations only while it is called.
  if (state.control != MPI_COMM_NULL && MPI_Iprobe(MPI_ANY_SOURCE, kControlTag, state.control,
                                                   &found, MPI_STATUS_IGNORE) != MPI_SUCCESS) {
    return 1;
  }
  for (const MPI_Comm comm : {state.data.comm, state.control, state.rail.comm, state.node.comm}) {
    if (state.ulfm.IsRevoked(comm)) return 1;
  }
  return state.ulfm.HasFailed(state.data.comm) ? 1 : 0;
}

int Agree(int32_t yes, double seconds, int32_t* all, char* error) {
  const State& state = GetState();
  if (yes == 0) {
    for (const MPI_Comm comm : {state.node.comm, state.rail.comm, state.control, state.data.comm}) {
      state.ulfm.Revoke(comm);
    }
  }
  const TimePoint deadline = DeadlineIn(seconds);
  static int flag;  // an agreement that has timed out may still write to it
  flag = yes;
  MPI_Request request = MPI_REQUEST_NULL;
  int result = state.ulfm.Agree(state.data.comm, &flag, &request);
  Backoff backoff;
  for (int done = 0; result == MPI_SUCCESS && !done; backoff.Pause()) {
    result = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (result == MPI_SUCCESS && !done && Clock::now() >= deadline) {
      return TimedOut("the agreement of the survivors", error);
    }
  }
  // An error means that a rank has died, which is an answer, too.
  *all = result == MPI_SUCCESS && flag != 0 ? 1 : 0;
  return kTfMpiOk;
}

int Regroup(TfMpiTransportInfo* info, char* error) {
  State& state = GetState();
  // Leaked: MPI may use these buffers until the sends are complete, and can no longer report that.
  new std::list<Outgoing>(std::move(state.outgoing));
  state.outgoing = std::list<Outgoing>();
  for (PairwiseAllreduce& exchange : state.exchanges) exchange.Abandon();
  state.probed = MPI_MESSAGE_NULL;
  MPI_Comm smaller = MPI_COMM_NULL;
  TFMPI_RETURN_IF_ERROR("MPIX_Comm_shrink", state.ulfm.Shrink(state.data.comm, &smaller));
  // The former communicators are not freed, because all of their ranks would have to take part.
  state.control = MPI_COMM_NULL;
  state.rail = state.node = Group();
  state.data.comm = smaller;
  return UseGroup(smaller, info, error);
}

}  // namespace tfmpi::mpi
