// The runtime's functions (libcudart) that TensorFlow's libraries call.

#include <cstdio>
#include <cstring>

#include "device/code.h"

using namespace standin;  // NOLINT: this file is the interface of that namespace

namespace {

constexpr int kRuntimeVersion = 12090;

thread_local Result last = kSuccess;

Result Keep(Result result) {
  if (result != kSuccess && result != kNotReady) last = result;
  return result;
}

// The runtime makes device 0's context current if the thread has none.
Context* Current() {
  Context* context = CurrentContext();
  return context != nullptr ? context : PrimaryContext(0);
}

int CurrentOrdinal() {
  Context* context = Current();
  for (size_t i = 0; i < devices().size(); ++i) {
    if (context != nullptr && devices()[i].get() == context->device) return static_cast<int>(i);
  }
  return 0;
}

Result With() { return Current() != nullptr ? kSuccess : 100; }

// The symbols and kernels of all binaries form one module.
Module* Binary() {
  static auto* module = new Module;
  return module;
}
struct Symbols {
  std::mutex mutex;
  std::map<const void*, Function*> functions;
  std::map<const void*, std::pair<std::string, size_t>> variables;
};
Symbols& symbols() {
  static auto* all = new Symbols;
  return *all;
}

struct Configuration {
  Dim3 grid, block;
  size_t shared;
  void* stream;
};
std::vector<Configuration>& configurations() {
  static thread_local std::vector<Configuration> pushed;
  return pushed;
}

}  // namespace

STANDIN_API void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
STANDIN_API void __cudaRegisterFatBinaryEnd(void**) {}
STANDIN_API void __cudaUnregisterFatBinary(void**) {}
STANDIN_API char __cudaInitModule(void**) { return 1; }
STANDIN_API void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int,
                                        void*, void*, void*, void*, int*) {
  Function* function = FunctionOf(Binary(), name);
  std::lock_guard<std::mutex> lock(symbols().mutex);
  symbols().functions[host] = function;
}
STANDIN_API void __cudaRegisterVar(void**, char* host, char*, const char* name, int, size_t bytes,
                                   int, int) {
  std::lock_guard<std::mutex> lock(symbols().mutex);
  symbols().variables[host] = {name, bytes};
}
STANDIN_API unsigned __cudaPushCallConfiguration(Dim3 grid, Dim3 block, size_t shared,
                                                 void* stream) {
  configurations().push_back({grid, block, shared, stream});
  return 0;
}
STANDIN_API Result __cudaPopCallConfiguration(Dim3* grid, Dim3* block, size_t* shared,
                                              void** stream) {
  if (configurations().empty()) return kInvalidValue;
  const Configuration popped = configurations().back();
  configurations().pop_back();
  *grid = popped.grid;
  *block = popped.block;
  *shared = popped.shared;
  *stream = popped.stream;
  return kSuccess;
}

STANDIN_API Result cudaGetSymbolAddress(void** pointer, const void* symbol) {
  std::unique_lock<std::mutex> lock(symbols().mutex);
  const auto found = symbols().variables.find(symbol);
  if (found == symbols().variables.end()) return Keep(13);
  const std::string name = found->second.first;
  lock.unlock();
  Current();
  Pointer address = 0;
  const Result result = GlobalOf(Binary(), name.c_str(), &address, nullptr);
  *pointer = reinterpret_cast<void*>(address);
  return Keep(result);
}
STANDIN_API Result cudaMemcpyToSymbol(const void* symbol, const void* from, size_t bytes,
                                      size_t offset, int) {
  void* to = nullptr;
  const Result result = cudaGetSymbolAddress(&to, symbol);
  if (result != kSuccess) return result;
  return Keep(Copy(ToPointer(to) + offset, ToPointer(from), bytes, nullptr, true));
}
STANDIN_API Result cudaGetFuncBySymbol(void** function, const void* symbol) {
  std::lock_guard<std::mutex> lock(symbols().mutex);
  const auto found = symbols().functions.find(symbol);
  if (found == symbols().functions.end()) return Keep(98);
  *function = found->second;
  return kSuccess;
}
STANDIN_API Result cudaGetKernel(void** kernel, const void* symbol) {
  return cudaGetFuncBySymbol(kernel, symbol);
}

STANDIN_API Result cudaLaunchKernel(const void*, Dim3, Dim3, void**, size_t, void* stream) {
  Current();
  return Keep(Launch(stream));
}
STANDIN_API Result cudaLaunchKernelExC(const LaunchConfig* config, const void*, void**) {
  Current();
  // Shared memory is a size_t here, so the stream is 8 bytes further than in the driver's.
  const auto* bytes = reinterpret_cast<const char*>(config);
  void* stream = nullptr;
  std::memcpy(&stream, bytes + 32, sizeof(stream));
  return Keep(Launch(stream));
}
STANDIN_API Result cudaLaunchCooperativeKernel(const void*, Dim3, Dim3, void**, size_t,
                                               void* stream) {
  Current();
  return Keep(Launch(stream));
}
STANDIN_API Result cudaLaunchHostFunc(void* stream, HostFunction function, void* argument) {
  Current();
  return Keep(Call(stream, function, argument));
}

STANDIN_API Result cudaFuncGetAttributes(void* attributes, const void*) {
  struct {
    size_t shared, constant, local;
    int threads, registers, ptx, binary, cache, dynamic, carveout, rest[22];
  } values{0, 0, 0, 1024, 32, 90, 90, 0, 49152, -1, {}};
  std::memcpy(attributes, &values, sizeof(values));
  return kSuccess;
}
STANDIN_API Result cudaFuncSetAttribute(const void*, int, int) { return kSuccess; }
STANDIN_API Result cudaFuncSetCacheConfig(const void*, int) { return kSuccess; }
STANDIN_API Result cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*,
                                                                 int threads, size_t) {
  *blocks = ActiveBlocks(threads);
  return kSuccess;
}
STANDIN_API Result cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*,
                                                                          int threads, size_t,
                                                                          unsigned) {
  *blocks = ActiveBlocks(threads);
  return kSuccess;
}

STANDIN_API Result cudaGetLastError() {
  const Result result = last;
  last = kSuccess;
  return result;
}
STANDIN_API Result cudaPeekAtLastError() { return last; }
STANDIN_API Result cudaRuntimeGetVersion(int* version) {
  *version = kRuntimeVersion;
  return kSuccess;
}
STANDIN_API Result cudaDriverGetVersion(int* version) {
  *version = kRuntimeVersion;
  return kSuccess;
}
STANDIN_API Result cuGetErrorName(Result result, const char** name);
STANDIN_API Result cuGetErrorString(Result result, const char** sentence);
STANDIN_API const char* cudaGetErrorName(Result result) {
  const char* name = nullptr;
  cuGetErrorName(result, &name);
  return name;
}
STANDIN_API const char* cudaGetErrorString(Result result) {
  const char* sentence = nullptr;
  cuGetErrorString(result, &sentence);
  return sentence;
}

STANDIN_API Result cudaGetDeviceCount(int* count) {
  *count = static_cast<int>(devices().size());
  return *count > 0 ? kSuccess : Keep(100);
}
STANDIN_API Result cudaGetDevice(int* ordinal) {
  *ordinal = CurrentOrdinal();
  return kSuccess;
}
STANDIN_API Result cudaSetDevice(int ordinal) {
  return PrimaryContext(ordinal) != nullptr ? kSuccess : Keep(kInvalidDevice);
}
STANDIN_API Result cudaSetDeviceFlags(unsigned) { return kSuccess; }
STANDIN_API Result cudaGetDeviceFlags(unsigned* flags) {
  *flags = 0;
  return kSuccess;
}
STANDIN_API Result cudaDeviceSynchronize() {
  if (With() == kSuccess) Synchronize(Current()->device);
  return With();
}
STANDIN_API Result cudaDeviceReset() { return kSuccess; }
STANDIN_API Result cudaDeviceGetAttribute(int* value, int attribute, int ordinal) {
  Device* device = DeviceAt(ordinal);
  if (device == nullptr) return Keep(kInvalidDevice);
  *value = Attribute(*device, attribute);
  return kSuccess;
}
STANDIN_API Result cudaDeviceSetSharedMemConfig(int) { return kSuccess; }
STANDIN_API Result cudaDeviceCanAccessPeer(int* can, int from, int to) {
  *can = from != to;
  return kSuccess;
}
STANDIN_API Result cudaDeviceEnablePeerAccess(int, unsigned) { return kSuccess; }
STANDIN_API Result cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return kSuccess;
}
STANDIN_API Result cudaDeviceGetPCIBusId(char* text, int length, int ordinal) {
  Device* device = DeviceAt(ordinal);
  if (device == nullptr) return Keep(kInvalidDevice);
  std::snprintf(text, length, "0000:%02X:00.0", PciBus(*device));
  return kSuccess;
}

// At the offsets of CUDA 12's structure; all other fields are zero.
STANDIN_API Result cudaGetDeviceProperties_v2(void* properties, int ordinal) {
  Device* device = DeviceAt(ordinal);
  if (device == nullptr) return Keep(kInvalidDevice);
  struct Head {
    char name[256];
    unsigned char uuid[16];
    char luid[8];
    unsigned mask;
    size_t total, shared;
    int registers, warp;
    size_t pitch;
    int threads, block[3], grid[3], clock;
    size_t constant;
    int major, minor;
    size_t texture, texture_pitch;
    int overlap, multiprocessors, timeout, integrated, can_map, mode;
  } head{};
  constexpr size_t kBytes = 1032;
  std::snprintf(head.name, sizeof(head.name), "Stand-in GPU");
  Uuid(*device, head.uuid);
  head.total = device->memory.capacity();
  head.shared = 49152;
  head.registers = 65536;
  head.warp = 32;
  head.pitch = 2147483647;
  head.threads = head.block[0] = head.block[1] = 1024;
  head.block[2] = 64;
  head.grid[0] = 2147483647;
  head.grid[1] = head.grid[2] = 65535;
  head.clock = 1980000;
  head.constant = 65536;
  head.major = 9;
  head.texture = 512;
  head.texture_pitch = 32;
  head.overlap = head.can_map = 1;
  head.multiprocessors = 132;
  std::memset(properties, 0, kBytes);
  std::memcpy(properties, &head, sizeof(head));
  return kSuccess;
}
