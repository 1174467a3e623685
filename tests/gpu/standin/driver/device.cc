// The driver's functions for itself, devices and contexts.

#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <set>

#include "device/operations.h"

using namespace standin;  // NOLINT: this file is the interface of that namespace

namespace {

constexpr int kDriverVersion = 12090;

bool started = false;

struct Text {
  Result result;
  const char *name, *sentence;
};
constexpr Text kTexts[] = {
    {kSuccess, "CUDA_SUCCESS", "no error"},
    {kInvalidValue, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {kNotInitialized, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {kInvalidDevice, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {kInvalidContext, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {kInvalidHandle, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {kNotFound, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {kNotReady, "CUDA_ERROR_NOT_READY", "device not ready"},
    {kNotSupported, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported by the stand-in GPU"},
};

const Text* TextOf(Result result) {
  for (const Text& text : kTexts) {
    if (text.result == result) return &text;
  }
  return nullptr;
}

Result WithDevice(int ordinal, Device** device) {
  if (!started) return kNotInitialized;
  *device = DeviceAt(ordinal);
  return *device == nullptr ? kInvalidDevice : kSuccess;
}

}  // namespace

STANDIN_API Result cuInit(unsigned) {
  started = true;
  return devices().empty() ? 100 : kSuccess;
}

STANDIN_API Result cuDriverGetVersion(int* version) {
  *version = kDriverVersion;
  return kSuccess;
}

STANDIN_API Result cuGetErrorName(Result result, const char** name) {
  const Text* text = TextOf(result);
  *name = text != nullptr ? text->name : "CUDA_ERROR_UNKNOWN";
  return kSuccess;
}

STANDIN_API Result cuGetErrorString(Result result, const char** sentence) {
  const Text* text = TextOf(result);
  *sentence = text != nullptr ? text->sentence : "unknown error";
  return kSuccess;
}

// The newest version of a function, except those whose newer version a program must name.
STANDIN_API Result cuGetProcAddress_v2(const char* name, void** function, int, uint64_t,
                                       int* status) {
  static const auto* plain = new std::set<std::string>{
      "cuMemPrefetchAsync", "cuMemAdvise",    "cuStreamUpdateCaptureDependencies",
      "cuGraphAddNode",     "cuStreamGetCtx", "cuEventElapsedTime",
      "cuDeviceGetUuid"};
  void* found = nullptr;
  Dl_info here{};
  dladdr(reinterpret_cast<void*>(&cuInit), &here);
  void* self = dlopen(here.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  if (self != nullptr) {
    if (plain->count(name) == 0) found = dlsym(self, (std::string(name) + "_v2").c_str());
    if (found == nullptr) found = dlsym(self, name);
    dlclose(self);
  }
  *function = found;
  if (status != nullptr) *status = found != nullptr ? 0 : 1;
  return found != nullptr ? kSuccess : kNotFound;
}

STANDIN_API Result cuGetProcAddress(const char* name, void** function, int version,
                                    uint64_t flags) {
  return cuGetProcAddress_v2(name, function, version, flags, nullptr);
}

STANDIN_API Result cuDeviceGetCount(int* count) {
  if (!started) return kNotInitialized;
  *count = static_cast<int>(devices().size());
  return kSuccess;
}

STANDIN_API Result cuDeviceGet(int* handle, int ordinal) {
  Device* device = nullptr;
  *handle = ordinal;
  return WithDevice(ordinal, &device);
}

STANDIN_API Result cuDeviceGetName(char* name, int length, int ordinal) {
  std::snprintf(name, length, "Stand-in GPU");
  Device* device = nullptr;
  return WithDevice(ordinal, &device);
}

STANDIN_API Result cuDeviceGetUuid(unsigned char* bytes16, int ordinal) {
  Device* device = nullptr;
  const Result result = WithDevice(ordinal, &device);
  if (result == kSuccess) Uuid(*device, bytes16);
  return result;
}

STANDIN_API Result cuDeviceGetUuid_v2(unsigned char* bytes16, int ordinal) {
  return cuDeviceGetUuid(bytes16, ordinal);
}

STANDIN_API Result cuDeviceTotalMem_v2(size_t* bytes, int ordinal) {
  Device* device = nullptr;
  const Result result = WithDevice(ordinal, &device);
  if (result == kSuccess) *bytes = device->memory.capacity();
  return result;
}

STANDIN_API Result cuDeviceGetAttribute(int* value, int attribute, int ordinal) {
  Device* device = nullptr;
  const Result result = WithDevice(ordinal, &device);
  if (result == kSuccess) *value = Attribute(*device, attribute);
  return result;
}

STANDIN_API Result cuDeviceGetPCIBusId(char* text, int length, int ordinal) {
  Device* device = nullptr;
  const Result result = WithDevice(ordinal, &device);
  if (result == kSuccess) std::snprintf(text, length, "0000:%02X:00.0", PciBus(*device));
  return result;
}

STANDIN_API Result cuDeviceGetByPCIBusId(int* ordinal, const char* text) {
  unsigned domain = 0, bus = 0;
  if (std::sscanf(text, "%x:%x", &domain, &bus) != 2) return kInvalidValue;
  for (size_t i = 0; i < devices().size(); ++i) {
    if (PciBus(*devices()[i]) != static_cast<int>(bus)) continue;
    *ordinal = static_cast<int>(i);
    return kSuccess;
  }
  return kInvalidDevice;
}

STANDIN_API Result cuDeviceComputeCapability(int* major, int* minor, int) {
  *major = 9;
  *minor = 0;
  return kSuccess;
}

STANDIN_API Result cuDeviceCanAccessPeer(int* can, int from, int to) {
  *can = from != to;
  return kSuccess;
}

STANDIN_API Result cuDeviceGetP2PAttribute(int* value, int, int, int) {
  *value = 1;
  return kSuccess;
}

STANDIN_API Result cuCtxEnablePeerAccess(void*, unsigned) { return kSuccess; }

STANDIN_API Result cuDevicePrimaryCtxRetain(void** context, int ordinal) {
  Device* device = nullptr;
  const Result result = WithDevice(ordinal, &device);
  if (result != kSuccess) return result;
  ++device->retained;
  *context = &device->context;
  return kSuccess;
}

STANDIN_API Result cuDevicePrimaryCtxRelease_v2(int ordinal) {
  Device* device = nullptr;
  const Result result = WithDevice(ordinal, &device);
  if (result == kSuccess) --device->retained;
  return result;
}

STANDIN_API Result cuDevicePrimaryCtxRelease(int ordinal) {
  return cuDevicePrimaryCtxRelease_v2(ordinal);
}

STANDIN_API Result cuDevicePrimaryCtxGetState(int ordinal, unsigned* flags, int* active) {
  Device* device = nullptr;
  const Result result = WithDevice(ordinal, &device);
  if (result != kSuccess) return result;
  *flags = 0;
  *active = device->retained > 0;
  return kSuccess;
}

STANDIN_API Result cuDevicePrimaryCtxSetFlags_v2(int, unsigned) { return kSuccess; }
STANDIN_API Result cuDevicePrimaryCtxSetFlags(int, unsigned) { return kSuccess; }

STANDIN_API Result cuCtxGetCurrent(void** context) {
  *context = CurrentContext();
  return kSuccess;
}

STANDIN_API Result cuCtxSetCurrent(void* context) {
  auto& stack = context_stack();
  if (stack.empty()) stack.push_back(nullptr);
  stack.back() = static_cast<Context*>(context);
  return kSuccess;
}

STANDIN_API Result cuCtxPushCurrent_v2(void* context) {
  context_stack().push_back(static_cast<Context*>(context));
  return kSuccess;
}

STANDIN_API Result cuCtxPopCurrent_v2(void** context) {
  if (context_stack().empty()) return kInvalidContext;
  if (context != nullptr) *context = context_stack().back();
  context_stack().pop_back();
  return kSuccess;
}

STANDIN_API Result cuCtxGetDevice(int* ordinal) {
  Context* context = CurrentContext();
  if (context == nullptr) return kInvalidContext;
  for (size_t i = 0; i < devices().size(); ++i) {
    if (devices()[i].get() == context->device) *ordinal = static_cast<int>(i);
  }
  return kSuccess;
}

STANDIN_API Result cuCtxSynchronize() {
  Context* context = CurrentContext();
  if (context == nullptr) return kInvalidContext;
  Synchronize(context->device);
  return kSuccess;
}

STANDIN_API Result cuCtxGetId(void* context, uint64_t* id) {
  *id = reinterpret_cast<uint64_t>(context);
  return kSuccess;
}

STANDIN_API Result cuCtxGetFlags(unsigned* flags) {
  *flags = 0;
  return kSuccess;
}

STANDIN_API Result cuCtxGetApiVersion(void*, unsigned* version) {
  *version = 3020;
  return kSuccess;
}

STANDIN_API Result cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return kSuccess;
}

STANDIN_API Result cuCtxSetLimit(int, size_t) { return kSuccess; }
STANDIN_API Result cuCtxGetLimit(size_t* value, int) {
  *value = 1 << 20;
  return kSuccess;
}
STANDIN_API Result cuCtxSetSharedMemConfig(int) { return kSuccess; }
STANDIN_API Result cuCtxSetCacheConfig(int) { return kSuccess; }
STANDIN_API Result cuCtxResetPersistingL2Cache() { return kSuccess; }
STANDIN_API Result cuProfilerStart() { return kSuccess; }
STANDIN_API Result cuProfilerStop() { return kSuccess; }
