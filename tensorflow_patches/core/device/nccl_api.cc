#include "tensorflow_patches/core/device/nccl_api.h"

#include <dlfcn.h>

#include "tensorflow_patches/core/device/symbols.h"

namespace tfmpi {

Status LoadNccl(const std::string& path, Nccl* nccl) {
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return Status(Code::kFailedPrecondition, std::string("no NCCL: ") + dlerror());
  }
  Symbols symbols(library);
  symbols.Find("ncclGetVersion", &nccl->GetVersion);
  symbols.Find("ncclGetUniqueId", &nccl->GetUniqueId);
  symbols.Find("ncclCommInitRankConfig", &nccl->CommInitRankConfig);
  symbols.Find("ncclCommGetAsyncError", &nccl->CommGetAsyncError);
  symbols.Find("ncclCommFinalize", &nccl->CommFinalize);
  symbols.Find("ncclCommDestroy", &nccl->CommDestroy);
  symbols.Find("ncclCommAbort", &nccl->CommAbort);
  symbols.Find("ncclAllReduce", &nccl->AllReduce);
  symbols.Find("ncclReduceScatter", &nccl->ReduceScatter);
  symbols.Find("ncclAllGather", &nccl->AllGather);
  symbols.Find("ncclRedOpCreatePreMulSum", &nccl->RedOpCreatePreMulSum);
  symbols.Find("ncclRedOpDestroy", &nccl->RedOpDestroy);
  symbols.Find("ncclMemAlloc", &nccl->MemAlloc);
  symbols.Find("ncclMemFree", &nccl->MemFree);
  symbols.Find("ncclCommRegister", &nccl->CommRegister);
  symbols.Find("ncclCommDeregister", &nccl->CommDeregister);
  symbols.Find("ncclGetErrorString", &nccl->GetErrorString);
  symbols.Find("ncclGetLastError", &nccl->GetLastError);
  if (symbols.missing().empty()) return Status();
  return Status(Code::kFailedPrecondition, path + " has no " + symbols.missing() +
                                               ": use NCCL 2.19 or newer, or "
                                               "TF_MPI_GPU_TRANSPORT=staged");
}

std::string NcclVersionText(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

}  // namespace tfmpi
