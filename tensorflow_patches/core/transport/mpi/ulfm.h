// ULFM, the extension of MPI for continuing after the death of processes. Its functions are looked
// up at run time: older releases with the same ABI lack them.

#ifndef TFMPI_CORE_TRANSPORT_MPI_ULFM_H_
#define TFMPI_CORE_TRANSPORT_MPI_ULFM_H_

#include <dlfcn.h>
#include <mpi.h>

#include <cstdint>

namespace tfmpi {

class Ulfm {
 public:
  // Finds the functions; false if this MPI lacks them. Only when compiled with Open MPI's mpi.h,
  // because the functions take Open MPI's handles.
  bool Load() {
#ifdef OMPI_MAJOR_VERSION
    return Find("MPIX_Comm_revoke", &revoke_) && Find("MPIX_Comm_is_revoked", &is_revoked_) &&
           Find("MPIX_Comm_shrink", &shrink_) && Find("MPIX_Comm_get_failed", &get_failed_) &&
           Find("MPIX_Comm_iagree", &agree_);
#else
    return false;
#endif
  }
  // Whether this job was started with fault tolerance; if not, the launcher ends it at a death.
  static bool IsOn() {
    int provided = 0;
    if (MPI_T_init_thread(MPI_THREAD_SINGLE, &provided) != MPI_SUCCESS) return false;
    int index = 0, length = 0;
    MPI_T_cvar_handle enabled;
    bool is_on = false;
    if (MPI_T_cvar_get_index("mpi_ft_enable", &index) == MPI_SUCCESS &&
        MPI_T_cvar_handle_alloc(index, nullptr, &enabled, &length) == MPI_SUCCESS) {
      int64_t value[2] = {};  // receives a bool or an int
      is_on = MPI_T_cvar_read(enabled, value) == MPI_SUCCESS && value[0] != 0;
      MPI_T_cvar_handle_free(&enabled);
    }
    MPI_T_finalize();
    return is_on;
  }

  void Revoke(MPI_Comm comm) const {
    if (comm != MPI_COMM_NULL) revoke_(comm);
  }
  bool IsRevoked(MPI_Comm comm) const {
    int revoked = 0;
    return comm != MPI_COMM_NULL && (is_revoked_(comm, &revoked) != MPI_SUCCESS || revoked != 0);
  }
  bool HasFailed(MPI_Comm comm) const {
    MPI_Group failed = MPI_GROUP_NULL;
    int size = 0;
    if (get_failed_(comm, &failed) != MPI_SUCCESS) return true;
    MPI_Group_size(failed, &size);
    MPI_Group_free(&failed);
    return size != 0;
  }
  // Both work on a revoked communicator.
  int Shrink(MPI_Comm comm, MPI_Comm* smaller) const { return shrink_(comm, smaller); }
  int Agree(MPI_Comm comm, int* flag, MPI_Request* request) const {
    return agree_(comm, flag, request);
  }

 private:
  template <typename Function>
  static bool Find(const char* name, Function* function) {
    *function = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
    return *function != nullptr;
  }

  int (*revoke_)(MPI_Comm) = nullptr;
  int (*is_revoked_)(MPI_Comm, int*) = nullptr;
  int (*shrink_)(MPI_Comm, MPI_Comm*) = nullptr;
  int (*get_failed_)(MPI_Comm, MPI_Group*) = nullptr;
  int (*agree_)(MPI_Comm, int*, MPI_Request*) = nullptr;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_TRANSPORT_MPI_ULFM_H_
