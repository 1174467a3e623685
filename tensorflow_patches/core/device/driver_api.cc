#include "tensorflow_patches/core/device/driver_api.h"

#include <dlfcn.h>

#include <mutex>

#include "tensorflow_patches/core/device/symbols.h"

namespace tfmpi {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";

// If the driver has a _v2 of a function, the plain name in its header refers to that.
std::string FindAll(void* library, Driver* driver) {
  Symbols symbols(library);
  symbols.Find("cuInit", &driver->Init);
  symbols.Find("cuGetErrorName", &driver->GetErrorName);
  symbols.Find("cuGetErrorString", &driver->GetErrorString);
  symbols.Find("cuDeviceGetCount", &driver->DeviceGetCount);
  symbols.Find("cuDeviceGet", &driver->DeviceGet);
  symbols.Find("cuDeviceGetName", &driver->DeviceGetName);
  symbols.Find("cuDeviceGetPCIBusId", &driver->DeviceGetPCIBusId);
  symbols.Find("cuDevicePrimaryCtxRetain", &driver->DevicePrimaryCtxRetain);
  symbols.Find("cuCtxGetCurrent", &driver->CtxGetCurrent);
  symbols.Find("cuCtxPushCurrent_v2", &driver->CtxPushCurrent);
  symbols.Find("cuCtxSetCurrent", &driver->CtxSetCurrent);
  symbols.Find("cuCtxPopCurrent_v2", &driver->CtxPopCurrent);
  symbols.Find("cuCtxGetDevice", &driver->CtxGetDevice);
  symbols.Find("cuCtxGetStreamPriorityRange", &driver->CtxGetStreamPriorityRange);
  symbols.Find("cuCtxSynchronize", &driver->CtxSynchronize);
  symbols.Find("cuThreadExchangeStreamCaptureMode", &driver->ThreadExchangeStreamCaptureMode);
  symbols.Find("cuStreamCreateWithPriority", &driver->StreamCreateWithPriority);
  symbols.Find("cuStreamDestroy_v2", &driver->StreamDestroy);
  symbols.Find("cuStreamGetCtx", &driver->StreamGetCtx);
  symbols.Find("cuStreamWaitEvent", &driver->StreamWaitEvent);
  symbols.Find("cuEventCreate", &driver->EventCreate);
  symbols.Find("cuEventDestroy_v2", &driver->EventDestroy);
  symbols.Find("cuEventRecord", &driver->EventRecord);
  symbols.Find("cuEventQuery", &driver->EventQuery);
  symbols.Find("cuMemcpyAsync", &driver->MemcpyAsync);
  symbols.Find("cuMemAlloc_v2", &driver->MemAlloc);
  symbols.Find("cuMemFree_v2", &driver->MemFree);
  symbols.Find("cuMemHostAlloc", &driver->MemHostAlloc);
  symbols.Find("cuMemFreeHost", &driver->MemFreeHost);
  symbols.Find("cuMemHostRegister_v2", &driver->MemHostRegister);
  symbols.Find("cuMemHostUnregister", &driver->MemHostUnregister);
  symbols.Find("cuIpcGetMemHandle", &driver->IpcGetMemHandle);
  symbols.Find("cuIpcOpenMemHandle_v2", &driver->IpcOpenMemHandle);
  symbols.Find("cuIpcCloseMemHandle", &driver->IpcCloseMemHandle);
  symbols.Find("cuModuleLoadData", &driver->ModuleLoadData);
  symbols.Find("cuModuleUnload", &driver->ModuleUnload);
  symbols.Find("cuModuleGetFunction", &driver->ModuleGetFunction);
  symbols.Find("cuLaunchKernel", &driver->LaunchKernel);
  return symbols.missing();
}

Status Load(Driver* driver) {
  // If TensorFlow has found a GPU, the library is already loaded.
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return Status(Code::kFailedPrecondition,
                  std::string("no CUDA driver on this machine: ") + dlerror());
  }
  const std::string missing = FindAll(library, driver);
  if (!missing.empty()) {
    return Status(Code::kFailedPrecondition, std::string("the CUDA driver (") + kLibrary +
                                                 ") has no " + missing +
                                                 ": use a driver of CUDA 12 or newer");
  }
  const int error = driver->Init(0);
  if (error == kCudaSuccess) return Status();
  return Status(Code::kFailedPrecondition,
                "the CUDA driver does not start: cuInit: " + CudaErrorText(*driver, error));
}

}  // namespace

const Driver* LoadDriver(Status* status) {
  static std::mutex mutex;
  static Driver driver;
  static bool loaded = false;
  std::lock_guard<std::mutex> lock(mutex);
  if (!loaded) {
    *status = Load(&driver);
    loaded = status->ok();
  }
  return loaded ? &driver : nullptr;
}

std::string CudaErrorText(const Driver& driver, int error) {
  const char* name = nullptr;
  const char* text = nullptr;
  if (driver.GetErrorName(error, &name) != kCudaSuccess || name == nullptr) {
    return "CUDA error " + std::to_string(error);
  }
  driver.GetErrorString(error, &text);
  return std::string(name) + " (" + (text == nullptr ? "" : text) + ")";
}

// TensorFlow relies on its threads' current contexts, so the destructor restores the previous one.
InContext::InContext(const Driver& driver, CudaContext context) : driver_(driver) {
  CudaContext current = nullptr;
  error_ = driver_.CtxGetCurrent(&current);
  if (error_ == kCudaSuccess && current != context) {
    error_ = driver_.CtxPushCurrent(context);
    pushed_ = error_ == kCudaSuccess;
  }
  driver_.ThreadExchangeStreamCaptureMode(&mode_);
}

InContext::~InContext() {
  driver_.ThreadExchangeStreamCaptureMode(&mode_);
  CudaContext popped = nullptr;
  if (pushed_) driver_.CtxPopCurrent(&popped);
}

}  // namespace tfmpi
