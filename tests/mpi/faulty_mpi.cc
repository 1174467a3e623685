// LD_PRELOAD=libfaulty_mpi.so makes the function that FAULTY names misbehave:
//
//   MPI_Isend, MPI_Irecv    they return an error for data; control messages are sent
//   MPI_Testall             no exchange of data ends
//   MPI_Imrecv              no control message arrives
//   last                    no control message has been sent when MPI is asked
//   MPIX_Comm_iagree        no agreement ends
//   shm_open                a rank cannot open what another has created

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <mpi.h>
#include <sys/types.h>

#include <cstdlib>
#include <cstring>

namespace {

constexpr int kControlTag = 1;  // core/transport/mpi/mpi_state.h
constexpr int kNobodysTag = 99;

bool Is(const char* fault) {
  const char* const faulty = std::getenv("FAULTY");
  return faulty != nullptr && std::strcmp(faulty, fault) == 0;
}

template <typename Function>
Function Next(Function, const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

// A request that never ends. What is behind MPI_BYTE and MPI_COMM_SELF is looked up, because this
// library is also loaded into programs without MPI, such as the launcher's.
int Never(MPI_Request* request) {
  static char nothing;
  const auto byte = static_cast<MPI_Datatype>(dlsym(RTLD_DEFAULT, "ompi_mpi_byte"));
  const auto self = static_cast<MPI_Comm>(dlsym(RTLD_DEFAULT, "ompi_mpi_comm_self"));
  return Next(&MPI_Irecv, "MPI_Irecv")(&nothing, 1, byte, 0, kNobodysTag, self, request);
}

}  // namespace

extern "C" {

#pragma GCC visibility push(default)

int MPI_Isend(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request* request) {
  if (tag > kControlTag && Is("MPI_Isend")) return MPI_ERR_OTHER;
  const int result = Next(&MPI_Isend, "MPI_Isend")(data, count, type, to, tag, comm, request);
  return tag == kControlTag && Is("last") ? Never(request) : result;
}

int MPI_Irecv(void* data, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm,
              MPI_Request* request) {
  if (tag > kControlTag && Is("MPI_Irecv")) return MPI_ERR_OTHER;
  return Next(&MPI_Irecv, "MPI_Irecv")(data, count, type, from, tag, comm, request);
}

int MPI_Testall(int count, MPI_Request* requests, int* ended, MPI_Status* statuses) {
  *ended = 0;
  if (Is("MPI_Testall")) return MPI_SUCCESS;
  return Next(&MPI_Testall, "MPI_Testall")(count, requests, ended, statuses);
}

int MPI_Imrecv(void* data, int count, MPI_Datatype type, MPI_Message* message,
               MPI_Request* request) {
  if (Is("MPI_Imrecv")) return Never(request);
  return Next(&MPI_Imrecv, "MPI_Imrecv")(data, count, type, message, request);
}

int MPIX_Comm_iagree(MPI_Comm comm, int* flag, MPI_Request* request) {
  if (Is("MPIX_Comm_iagree")) return Never(request);
  return Next(&MPIX_Comm_iagree, "MPIX_Comm_iagree")(comm, flag, request);
}

int shm_open(const char* name, int flags, mode_t mode) noexcept {
  if ((flags & O_CREAT) == 0 && Is("shm_open")) {
    errno = ENFILE;
    return -1;
  }
  return Next(&shm_open, "shm_open")(name, flags, mode);
}

#pragma GCC visibility pop

}  // extern "C"
