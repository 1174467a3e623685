// The part of the CUDA driver that is used here, in our own declarations: its binary interface is
// stable, and the core builds without CUDA. The names are the driver's, without "cu".

#ifndef TFMPI_CORE_DEVICE_DRIVER_API_H_
#define TFMPI_CORE_DEVICE_DRIVER_API_H_

#include <cstddef>
#include <string>

#include "tensorflow_patches/core/base/status.h"
#include "tensorflow_patches/core/device/gpu.h"

namespace tfmpi {

using CudaContext = struct CudaContextHandle*;  // a CUcontext

// Values of the driver's enumerations.
inline constexpr int kCudaSuccess = 0;
inline constexpr int kCudaNotReady = 600;
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr unsigned kMemHostPortable = 1;
inline constexpr unsigned kMemRegisterPortable = 1;
inline constexpr int kCaptureModeRelaxed = 2;
inline constexpr unsigned kIpcMemLazyEnablePeerAccess = 1;

using CudaModule = struct CudaModuleHandle*;      // a CUmodule
using CudaFunction = struct CudaFunctionHandle*;  // a CUfunction
struct CudaIpcHandle {                            // a CUipcMemHandle; passed by value
  char bytes[64];
};

struct Driver {
  int (*Init)(unsigned flags);
  int (*GetErrorName)(int error, const char** name);
  int (*GetErrorString)(int error, const char** text);

  int (*DeviceGetCount)(int* count);
  int (*DeviceGet)(int* device, int ordinal);
  int (*DeviceGetName)(char* name, int length, int device);
  int (*DeviceGetPCIBusId)(char* address, int length, int device);
  int (*DevicePrimaryCtxRetain)(CudaContext* context, int device);

  int (*CtxGetCurrent)(CudaContext* context);
  int (*CtxPushCurrent)(CudaContext context);
  int (*CtxSetCurrent)(CudaContext context);
  int (*CtxPopCurrent)(CudaContext* context);
  int (*CtxGetDevice)(int* device);
  int (*CtxGetStreamPriorityRange)(int* least, int* greatest);
  int (*CtxSynchronize)();
  int (*ThreadExchangeStreamCaptureMode)(int* mode);

  int (*StreamCreateWithPriority)(GpuStream* stream, unsigned flags, int priority);
  int (*StreamDestroy)(GpuStream stream);
  int (*StreamGetCtx)(GpuStream stream, CudaContext* context);
  int (*StreamWaitEvent)(GpuStream stream, GpuEvent event, unsigned flags);
  int (*EventCreate)(GpuEvent* event, unsigned flags);
  int (*EventDestroy)(GpuEvent event);
  int (*EventRecord)(GpuEvent event, GpuStream stream);
  int (*EventQuery)(GpuEvent event);

  // Addresses are CUdeviceptrs: unified, so they identify their GPU, or the host.
  int (*MemcpyAsync)(unsigned long long to, unsigned long long from, size_t bytes,
                     GpuStream stream);
  int (*MemAlloc)(unsigned long long* memory, size_t bytes);
  int (*MemFree)(unsigned long long memory);
  int (*MemHostAlloc)(void** memory, size_t bytes, unsigned flags);
  int (*MemFreeHost)(void* memory);
  int (*MemHostRegister)(void* memory, size_t bytes, unsigned flags);
  int (*MemHostUnregister)(void* memory);

  int (*IpcGetMemHandle)(CudaIpcHandle* handle, unsigned long long memory);
  int (*IpcOpenMemHandle)(unsigned long long* memory, CudaIpcHandle handle, unsigned flags);
  int (*IpcCloseMemHandle)(unsigned long long memory);

  int (*ModuleLoadData)(CudaModule* module, const void* image);
  int (*ModuleUnload)(CudaModule module);
  int (*ModuleGetFunction)(CudaFunction* function, CudaModule module, const char* name);
  int (*LaunchKernel)(CudaFunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                      unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                      GpuStream stream, void** arguments, void** extra);
};

// The driver, which the first call looks up and initializes. Null, with the reason in `status`, if
// there is none; the next call tries again. It stays loaded.
const Driver* LoadDriver(Status* status);

// "CUDA_ERROR_... (what it means)".
std::string CudaErrorText(const Driver& driver, int error);

// While it lives, `context` is current on the calling thread, and driver calls are allowed while a
// stream of this process is being captured into a CUDA graph: by default, an allocation or query on
// any thread would break such a capture.
class InContext {
 public:
  InContext(const Driver& driver, CudaContext context);
  ~InContext();
  InContext(const InContext&) = delete;
  InContext& operator=(const InContext&) = delete;

  // The result of making the context current.
  int error() const { return error_; }

 private:
  const Driver& driver_;
  bool pushed_ = false;
  int mode_ = kCaptureModeRelaxed;
  int error_ = kCudaSuccess;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_DEVICE_DRIVER_API_H_
