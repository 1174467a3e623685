// The driver's functions for modules, functions and launches.

#include "device/code.h"

#include <cstring>

#include "driver/image.h"

namespace standin {

Function* FunctionOf(Module* module, const char* name) {
  std::lock_guard<std::mutex> lock(module->mutex);
  auto& function = module->functions[name];
  if (function == nullptr) function.reset(new Function{name, module, {}});
  return function.get();
}

Result GlobalOf(Module* module, const char* name, Pointer* pointer, size_t* bytes) {
  std::lock_guard<std::mutex> lock(module->mutex);
  const auto variable = module->variables.find(name);
  const bool known = variable != module->variables.end();
  const size_t length = known ? variable->second.size() : kGlobalBytes;
  Pointer& global = module->globals[name];
  if (global == 0) {
    Device* device = CurrentContext() != nullptr ? CurrentContext()->device : DeviceAt(0);
    const Result result = device->memory.Allocate(length, &global);
    if (result != kSuccess) return result;
    if (known) std::memcpy(Reach(global), variable->second.data(), length);
  }
  if (pointer != nullptr) *pointer = global;
  if (bytes != nullptr) *bytes = length;
  return kSuccess;
}

int FunctionAttribute(const Function* function, int attribute) {
  if (function != nullptr) {
    const auto set = function->attributes.find(attribute);
    if (set != function->attributes.end()) return set->second;
  }
  static const auto* known =
      new std::map<int, int>{{0, 1024}, {4, 32}, {5, 90}, {6, 90}, {8, 49152}, {9, -1}};
  const auto found = known->find(attribute);
  return found == known->end() ? 0 : found->second;
}

int ActiveBlocks(int threads) {
  return threads <= 64 ? 32 : 2048 / (threads <= 1024 ? threads : 1024);
}

}  // namespace standin

using namespace standin;  // NOLINT: this file is the interface of that namespace

namespace {

Result Load(void** handle, const void* image) {
  auto* module = new Module;
  if (image != nullptr) module->variables = Variables(image);
  *handle = module;
  return kSuccess;
}

}  // namespace

STANDIN_API Result cuModuleLoad(void** module, const char*) { return Load(module, nullptr); }
STANDIN_API Result cuModuleLoadData(void** module, const void* image) {
  return Load(module, image);
}
STANDIN_API Result cuModuleLoadFatBinary(void** module, const void* image) {
  return Load(module, image);
}
STANDIN_API Result cuModuleLoadDataEx(void** module, const void* image, unsigned count,
                                      const int* options, void** values) {
  constexpr int kLogBytes = 4, kErrorBytes = 6;  // both logs are empty
  for (unsigned i = 0; i < count; ++i) {
    if (options[i] == kLogBytes || options[i] == kErrorBytes) values[i] = nullptr;
  }
  return Load(module, image);
}
STANDIN_API Result cuModuleUnload(void* handle) {
  auto* module = static_cast<Module*>(handle);
  for (const auto& [name, pointer] : module->globals) FreeDevice(pointer);
  delete module;
  return kSuccess;
}
STANDIN_API Result cuModuleGetFunction(void** function, void* module, const char* name) {
  *function = FunctionOf(static_cast<Module*>(module), name);
  return kSuccess;
}
STANDIN_API Result cuModuleGetGlobal_v2(Pointer* pointer, size_t* bytes, void* module,
                                        const char* name) {
  return GlobalOf(static_cast<Module*>(module), name, pointer, bytes);
}
STANDIN_API Result cuModuleGetLoadingMode(int* mode) {
  *mode = 2;  //  lazy loading
  return kSuccess;
}

// A library is a module, and a kernel a function.
STANDIN_API Result cuLibraryLoadData(void** library, const void* image, int*, void**, unsigned,
                                     int*, void**, unsigned) {
  return Load(library, image);
}
STANDIN_API Result cuLibraryUnload(void* library) { return cuModuleUnload(library); }
STANDIN_API Result cuLibraryGetKernel(void** kernel, void* library, const char* name) {
  return cuModuleGetFunction(kernel, library, name);
}
STANDIN_API Result cuLibraryGetModule(void** module, void* library) {
  *module = library;
  return kSuccess;
}
STANDIN_API Result cuLibraryGetGlobal(Pointer* pointer, size_t* bytes, void* library,
                                      const char* name) {
  return cuModuleGetGlobal_v2(pointer, bytes, library, name);
}
STANDIN_API Result cuKernelGetFunction(void** function, void* kernel) {
  *function = kernel;
  return kSuccess;
}
STANDIN_API Result cuKernelGetName(const char** name, void* kernel) {
  *name = static_cast<Function*>(kernel)->name.c_str();
  return kSuccess;
}
STANDIN_API Result cuKernelGetAttribute(int* value, int attribute, void* kernel, int) {
  *value = FunctionAttribute(static_cast<Function*>(kernel), attribute);
  return kSuccess;
}
STANDIN_API Result cuKernelSetAttribute(int attribute, int value, void* kernel, int) {
  static_cast<Function*>(kernel)->attributes[attribute] = value;
  return kSuccess;
}

STANDIN_API Result cuFuncGetName(const char** name, void* function) {
  return cuKernelGetName(name, function);
}
STANDIN_API Result cuFuncGetModule(void** module, void* function) {
  *module = static_cast<Function*>(function)->module;
  return kSuccess;
}
STANDIN_API Result cuFuncGetAttribute(int* value, int attribute, void* function) {
  *value = FunctionAttribute(static_cast<Function*>(function), attribute);
  return kSuccess;
}
STANDIN_API Result cuFuncSetAttribute(void* function, int attribute, int value) {
  static_cast<Function*>(function)->attributes[attribute] = value;
  return kSuccess;
}
STANDIN_API Result cuFuncSetCacheConfig(void*, int) { return kSuccess; }
STANDIN_API Result cuFuncSetSharedMemConfig(void*, int) { return kSuccess; }

STANDIN_API Result cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void*, int threads,
                                                               size_t) {
  *blocks = ActiveBlocks(threads);
  return kSuccess;
}
STANDIN_API Result cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, void*,
                                                                        int threads, size_t,
                                                                        unsigned) {
  *blocks = ActiveBlocks(threads);
  return kSuccess;
}
STANDIN_API Result cuOccupancyMaxPotentialBlockSize(int* blocks, int* threads, void*, void*, size_t,
                                                    int most) {
  *threads = most > 0 && most < 1024 ? most : 1024;
  *blocks = 132 * ActiveBlocks(*threads);
  return kSuccess;
}
STANDIN_API Result cuOccupancyMaxActiveClusters(int* clusters, void*, const LaunchConfig*) {
  *clusters = 66;
  return kSuccess;
}

STANDIN_API Result cuLaunchKernel(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                  unsigned, void* stream, void**, void**) {
  return Launch(stream);
}
STANDIN_API Result cuLaunchKernelEx(const LaunchConfig* config, void*, void**, void**) {
  return Launch(config->stream);
}
STANDIN_API Result cuLaunchCooperativeKernel(void*, unsigned, unsigned, unsigned, unsigned,
                                             unsigned, unsigned, unsigned, void* stream, void**) {
  return Launch(stream);
}

// Linking produces an empty module.
STANDIN_API Result cuLinkCreate_v2(unsigned, int*, void**, void** state) {
  *state = new int(0);
  return kSuccess;
}
STANDIN_API Result cuLinkAddData_v2(void*, int, void*, size_t, const char*, unsigned, int*,
                                    void**) {
  return kSuccess;
}
STANDIN_API Result cuLinkComplete(void* state, void** image, size_t* bytes) {
  *image = state;
  *bytes = sizeof(int);
  return kSuccess;
}
STANDIN_API Result cuLinkDestroy(void* state) {
  delete static_cast<int*>(state);
  return kSuccess;
}
STANDIN_API Result cuTensorMapEncodeTiled(void*, int, unsigned, void*, const uint64_t*,
                                          const uint64_t*, const unsigned*, const unsigned*, int,
                                          int, int, int) {
  return kSuccess;
}
