// Messages with their data in GPU memory, for MPI libraries that support it (CUDA-aware MPI).

#include <dlfcn.h>

#include <climits>
#include <cstdio>

#include "tensorflow_patches/core/transport/mpi/mpi_state.h"

namespace tfmpi::mpi {
namespace {

template <typename Function>
Function Find(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
}

}  // namespace

// Calls functions that are not in the MPI standard. They are looked up at run time, since the MPI
// that this process has loaded need not be the one it was compiled with. Open MPI, MPICH, MVAPICH
// and ParaStation have the first function, Cray MPICH the second. 0 for a library with neither.
int TakesGpuMemory() {
  constexpr int kCuda = 0;  // MPIX_GPU_SUPPORT_CUDA
  int takes = 0;
  if (const auto query = Find<int (*)()>("MPIX_Query_cuda_support"); query != nullptr) {
    takes = query();
  } else if (const auto ask = Find<int (*)(int, int*)>("MPIX_GPU_query_support"); ask != nullptr) {
    if (ask(kCuda, &takes) != MPI_SUCCESS) takes = 0;
  }
  return takes == 1 ? 1 : 0;
}

int StartExchange(int32_t lane, const TfMpiPart* send, const TfMpiPart* receive, char* error) {
  State& state = GetState();
  const Group& group = state.data;
  std::vector<MPI_Request>& requests = state.lanes[lane];
  const auto refuse = [error](const char* why) {
    std::snprintf(error, TFMPI_ERROR_BYTES, "an exchange between GPUs cannot begin: %s", why);
    return static_cast<int>(kTfMpiFailed);
  };
  if (!requests.empty()) return refuse("the previous one on this lane has not ended");
  for (int r = 0; r < group.size; ++r) {
    if (send[r].bytes > INT_MAX || receive[r].bytes > INT_MAX)
      return refuse("a part has 2 GiB or more");
  }
  // Receives are posted first, so that arriving data need not be buffered.
  for (int i = 1; i < group.size; ++i) {
    const int source = (group.rank + i) % group.size;
    if (receive[source].bytes == 0) continue;
    requests.push_back(MPI_REQUEST_NULL);
    TFMPI_RETURN_IF_ERROR(
        "MPI_Irecv into memory of a GPU",
        MPI_Irecv(receive[source].data, static_cast<int>(receive[source].bytes), MPI_BYTE, source,
                  kLaneTag + lane, group.comm, &requests.back()));
  }
  for (int i = 1; i < group.size; ++i) {
    const int peer = (group.rank - i + group.size) % group.size;
    if (send[peer].bytes == 0) continue;
    requests.push_back(MPI_REQUEST_NULL);
    TFMPI_RETURN_IF_ERROR("MPI_Isend from memory of a GPU",
                          MPI_Isend(send[peer].data, static_cast<int>(send[peer].bytes), MPI_BYTE,
                                    peer, kLaneTag + lane, group.comm, &requests.back()));
  }
  return kTfMpiOk;
}

int TestExchange(int32_t lane, int32_t* ended, char* error) {
  std::vector<MPI_Request>& requests = GetState().lanes[lane];
  int all = 0;
  TFMPI_RETURN_IF_ERROR(
      "an exchange between GPUs",
      MPI_Testall(static_cast<int>(requests.size()), requests.data(), &all, MPI_STATUSES_IGNORE));
  if (all) requests.clear();
  *ended = all;
  return kTfMpiOk;
}

}  // namespace tfmpi::mpi
