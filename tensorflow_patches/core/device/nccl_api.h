// The part of NCCL that is used here, in our own declarations: the core builds without NCCL. The
// names are NCCL's, without "nccl". The values have been the same in its header since 2.17.

#ifndef TFMPI_CORE_DEVICE_NCCL_API_H_
#define TFMPI_CORE_DEVICE_NCCL_API_H_

#include <climits>
#include <cstddef>
#include <string>

#include "tensorflow_patches/core/base/status.h"
#include "tensorflow_patches/core/device/gpu.h"

namespace tfmpi {

using NcclComm = struct NcclCommHandle*;  // an ncclComm_t

struct NcclId {  // an ncclUniqueId
  char bytes[128];
};

inline constexpr int kNcclSuccess = 0;
inline constexpr int kNcclInProgress = 7;

// An ncclConfig_t of version 2.17. Later libraries accept it by its declared size and version: they
// treat newer fields as unset.
struct NcclConfig {
  size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 21700;
  int blocking = INT_MIN;  // INT_MIN: NCCL decides
  int cga_cluster_size = INT_MIN;
  int min_ctas = INT_MIN;
  int max_ctas = INT_MIN;
  const char* net_name = nullptr;
};
static_assert(sizeof(NcclConfig) == 40, "the layout of 2.17");

enum NcclRedOp { kNcclSum = 0, kNcclProd = 1, kNcclMax = 2, kNcclMin = 3 };
inline constexpr int kNcclScalarHostImmediate = 1;

struct Nccl {
  int (*GetVersion)(int* version);
  int (*GetUniqueId)(NcclId* id);
  int (*CommInitRankConfig)(NcclComm* comm, int size, NcclId id, int rank, NcclConfig* config);
  int (*CommGetAsyncError)(NcclComm comm, int* state);
  int (*CommFinalize)(NcclComm comm);
  int (*CommDestroy)(NcclComm comm);
  int (*CommAbort)(NcclComm comm);
  int (*AllReduce)(const void* in, void* out, size_t count, int type, int op, NcclComm comm,
                   GpuStream stream);
  int (*ReduceScatter)(const void* in, void* out, size_t out_count, int type, int op, NcclComm comm,
                       GpuStream stream);
  int (*AllGather)(const void* in, void* out, size_t in_count, int type, NcclComm comm,
                   GpuStream stream);
  int (*RedOpCreatePreMulSum)(int* op, void* scalar, int type, int residence, NcclComm comm);
  int (*RedOpDestroy)(int op, NcclComm comm);
  int (*MemAlloc)(void** memory, size_t bytes);
  int (*MemFree)(void* memory);
  int (*CommRegister)(NcclComm comm, void* memory, size_t bytes, void** handle);
  int (*CommDeregister)(NcclComm comm, void* handle);
  const char* (*GetErrorString)(int result);
  const char* (*GetLastError)(NcclComm comm);
};

// Loads the library at `path`; dlopen searches for a name without a slash. It stays loaded. Its
// functions may be called on any thread.
Status LoadNccl(const std::string& path, Nccl* nccl);

// "2.32.3" for 23203.
std::string NcclVersionText(int version);

}  // namespace tfmpi

#endif  // TFMPI_CORE_DEVICE_NCCL_API_H_
