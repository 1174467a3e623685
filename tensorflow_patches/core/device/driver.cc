#include "tensorflow_patches/core/device/driver.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <utility>

#include "tensorflow_patches/core/device/sum_kernels.h"

namespace tfmpi {
namespace {

// Calls the driver in a context. An error is reported with the GPU's name, and with `bytes` unless
// they are 0.
template <typename Function>
Status InContextDo(const Driver& driver, CudaContext context, const std::string& gpu,
                   const char* name, const Function& function, size_t bytes = 0) {
  const InContext in_context(driver, context);
  const int error = in_context.error() != kCudaSuccess ? in_context.error() : function();
  if (error == kCudaSuccess) return Status();
  const std::string of = bytes == 0 ? "" : " of " + std::to_string(bytes) + " bytes";
  return Status(Code::kInternal,
                std::string(name) + of + " on " + gpu + ": " + CudaErrorText(driver, error));
}

class DriverSum : public GpuSum {
 public:
  DriverSum(const Driver& driver, CudaContext context, std::string gpu, size_t sources)
      : driver_(driver), context_(context), gpu_(std::move(gpu)), sources_(sources) {}
  ~DriverSum() override {
    if (module_ != nullptr) Do("cuModuleUnload", [&] { return driver_.ModuleUnload(module_); });
  }

  Status Load() {
    const std::string text = SumKernels(sources_);
    Status status =
        Do("cuModuleLoadData", [&] { return driver_.ModuleLoadData(&module_, text.c_str()); });
    for (const DataType type :
         {DataType::kFloat16, DataType::kBfloat16, DataType::kFloat32, DataType::kFloat64}) {
      for (const Grain grain : {Grain::kElement, Grain::kWide}) {
        if (!status.ok()) return status;
        const std::string name = SumKernelName(type, grain);
        status = Do("cuModuleGetFunction", [&] {
          return driver_.ModuleGetFunction(&kernels_[name], module_, name.c_str());
        });
      }
    }
    return status;
  }

  Status Enqueue(const std::vector<const void*>& sources, const std::vector<double>& scales,
                 void* out, size_t count, DataType type, GpuStream stream) override {
    // The kernel with the small grain handles the elements after the last multiple of 16 bytes, or
    // all elements if the result is not aligned to 16 bytes.
    const size_t per_grain = GrainBytes(type, Grain::kWide) / SizeOf(type);
    const bool aligned = reinterpret_cast<uintptr_t>(out) % GrainBytes(type, Grain::kWide) == 0;
    const size_t wide = aligned ? count / per_grain : 0;
    Status status;
    if (wide != 0) {
      status = Launch({type, Grain::kWide, 0, wide}, sources, scales, out, stream);
    }
    const size_t done = wide * per_grain;
    if (status.ok() && done != count) {
      status = Launch({type, Grain::kElement, done * SizeOf(type), count - done}, sources, scales,
                      out, stream);
    }
    return status;
  }

 private:
  struct Part {
    DataType type;
    Grain grain;
    size_t begin;    // bytes
    uint64_t count;  // grains
  };

  Status Launch(Part part, const std::vector<const void*>& sources,
                const std::vector<double>& scales, void* out, GpuStream stream) {
    constexpr uint64_t kThreads = 256;
    constexpr uint64_t kMaxBlocks = 2048;  // several per multiprocessor; beyond it, threads loop
    const auto at = [&part](const void* memory) {
      return static_cast<unsigned long long>(reinterpret_cast<uintptr_t>(memory) + part.begin);
    };
    unsigned long long to = at(out);
    std::vector<unsigned long long> from;
    for (const void* source : sources) from.push_back(at(source));
    std::vector<double> factors = scales;
    std::vector<void*> arguments = {&to, &part.count};
    for (unsigned long long& address : from) arguments.push_back(&address);
    for (double& factor : factors) arguments.push_back(&factor);
    const auto blocks =
        static_cast<unsigned>(std::min(kMaxBlocks, (part.count + kThreads - 1) / kThreads));
    return Do("cuLaunchKernel", [&] {
      return driver_.LaunchKernel(kernels_.at(SumKernelName(part.type, part.grain)), blocks, 1, 1,
                                  kThreads, 1, 1, 0, stream, arguments.data(), nullptr);
    });
  }

  template <typename Function>
  Status Do(const char* name, const Function& function) {
    return InContextDo(driver_, context_, gpu_, name, function);
  }

  const Driver& driver_;
  const CudaContext context_;
  const std::string gpu_;
  const size_t sources_;
  CudaModule module_ = nullptr;
  std::map<std::string, CudaFunction> kernels_;
};

// Identifies this process among all that may share a GPU: process ids are not unique across
// containers.
const uint64_t* ThisProcess() {
  static const auto* const drawn = [] {
    std::random_device device;
    auto* const numbers = new uint64_t[2];
    for (int i = 0; i < 2; ++i) numbers[i] = (uint64_t{device()} << 32) | device();
    return numbers;
  }();
  return drawn;
}

// The driver is safe to call on any thread; this class has no mutable state.
class DriverGpu : public Gpu {
 public:
  DriverGpu(const Driver& driver, CudaContext context, std::string description)
      : driver_(driver), context_(context), description_(std::move(description)) {}

  std::string description() const override { return description_; }

  Status MakeCurrent() override {
    const int error = driver_.CtxSetCurrent(context_);
    if (error != kCudaSuccess) {
      return Status(Code::kInternal,
                    "cuCtxSetCurrent on " + description_ + ": " + CudaErrorText(driver_, error));
    }
    int mode = kCaptureModeRelaxed;
    driver_.ThreadExchangeStreamCaptureMode(&mode);
    return Status();
  }

  Status NewStream(GpuStream* stream) override {
    return Call("cuStreamCreateWithPriority", [&] {
      int least = 0;
      int greatest = 0;
      const int error = driver_.CtxGetStreamPriorityRange(&least, &greatest);
      if (error != kCudaSuccess) return error;
      return driver_.StreamCreateWithPriority(stream, kStreamNonBlocking, greatest);
    });
  }

  Status NewEvent(GpuEvent* event) override {
    return Call("cuEventCreate", [&] { return driver_.EventCreate(event, kEventDisableTiming); });
  }

  // An error here belongs to earlier work; Query of that work's event returns it, too.
  void Delete(GpuStream stream) override {
    Call("cuStreamDestroy", [&] { return driver_.StreamDestroy(stream); });
  }
  void Delete(GpuEvent event) override {
    Call("cuEventDestroy", [&] { return driver_.EventDestroy(event); });
  }

  Status Record(GpuEvent event, GpuStream stream) override {
    return Call("cuEventRecord", [&] { return driver_.EventRecord(event, stream); });
  }

  Status Wait(GpuStream stream, GpuEvent event) override {
    return Call("cuStreamWaitEvent", [&] { return driver_.StreamWaitEvent(stream, event, 0); });
  }

  Status Query(GpuEvent event, bool* ended) override {
    *ended = false;
    return Call("cuEventQuery", [&] {
      const int error = driver_.EventQuery(event);
      *ended = error == kCudaSuccess;
      return error == kCudaNotReady ? kCudaSuccess : error;
    });
  }

  Status Copy(void* to, const void* from, size_t bytes, GpuStream stream) override {
    return Call(
        "cuMemcpyAsync",
        [&] { return driver_.MemcpyAsync(Address(to), Address(from), bytes, stream); }, bytes);
  }

  Status NewPinned(size_t bytes, void** memory) override {
    return Call(
        "cuMemHostAlloc", [&] { return driver_.MemHostAlloc(memory, bytes, kMemHostPortable); },
        bytes);
  }

  // cuMemFreeHost waits for the GPU in practice, but that is not documented.
  void DeletePinned(void* memory) override {
    Call("cuMemFreeHost", [&] {
      driver_.CtxSynchronize();
      return driver_.MemFreeHost(memory);
    });
  }

  Status Register(void* memory, size_t bytes) override {
    return Call(
        "cuMemHostRegister",
        [&] { return driver_.MemHostRegister(memory, bytes, kMemRegisterPortable); }, bytes);
  }

  void Unregister(void* memory) override {
    Call("cuMemHostUnregister", [&] {
      driver_.CtxSynchronize();
      return driver_.MemHostUnregister(memory);
    });
  }

  Status NewMemory(size_t bytes, void** memory) override {
    return Call(
        "cuMemAlloc",
        [&] {
          unsigned long long address = 0;
          const int error = driver_.MemAlloc(&address, bytes);
          *memory = reinterpret_cast<void*>(address);
          return error;
        },
        bytes);
  }

  void DeleteMemory(void* memory) override {
    Call("cuMemFree", [&] { return driver_.MemFree(Address(memory)); });
  }

  Status NewSharedMemory(size_t bytes, void** memory, GpuHandle* handle) override {
    TFMPI_RETURN_IF_NOT_OK(NewMemory(bytes, memory));
    CudaIpcHandle ipc = {};
    const Status status =
        Call("cuIpcGetMemHandle", [&] { return driver_.IpcGetMemHandle(&ipc, Address(*memory)); });
    if (!status.ok()) {
      DeleteMemory(*memory);
      *memory = nullptr;
      return status;
    }
    std::memcpy(handle->bytes, ipc.bytes, sizeof(handle->bytes));
    std::memcpy(handle->process, ThisProcess(), sizeof(handle->process));
    handle->address = Address(*memory);
    return status;
  }

  // The driver refuses to open a process's own memory.
  Status OpenMemory(const GpuHandle& handle, void** memory) override {
    if (IsOwn(handle)) {
      *memory = reinterpret_cast<void*>(handle.address);
      return Status();
    }
    CudaIpcHandle ipc = {};
    std::memcpy(ipc.bytes, handle.bytes, sizeof(ipc.bytes));
    unsigned long long address = 0;
    const Status status = Call("cuIpcOpenMemHandle", [&] {
      return driver_.IpcOpenMemHandle(&address, ipc, kIpcMemLazyEnablePeerAccess);
    });
    *memory = reinterpret_cast<void*>(address);
    return status;
  }

  void CloseMemory(const GpuHandle& handle, void* memory) override {
    if (IsOwn(handle)) return;
    Call("cuIpcCloseMemHandle", [&] { return driver_.IpcCloseMemHandle(Address(memory)); });
  }

  Status NewSum(size_t sources, std::unique_ptr<GpuSum>* sum) override {
    auto made = std::make_unique<DriverSum>(driver_, context_, description_, sources);
    const Status status = made->Load();
    if (status.ok()) *sum = std::move(made);
    return status;
  }

 private:
  static bool IsOwn(const GpuHandle& handle) {
    return std::memcmp(handle.process, ThisProcess(), sizeof(handle.process)) == 0;
  }

  static unsigned long long Address(const void* memory) {
    return reinterpret_cast<unsigned long long>(memory);
  }

  template <typename Function>
  Status Call(const char* name, const Function& function, size_t bytes = 0) {
    return InContextDo(driver_, context_, description_, name, function, bytes);
  }

  const Driver& driver_;
  const CudaContext context_;
  const std::string description_;
};

// The PCI address and the name of a device.
int Identify(const Driver& driver, int device, std::pair<std::string, std::string>* identity) {
  char address[32] = {};
  char name[256] = {};
  int error = driver.DeviceGetName(name, sizeof(name) - 1, device);
  if (error == kCudaSuccess) error = driver.DeviceGetPCIBusId(address, sizeof(address), device);
  *identity = {address, name};
  return error;
}

// Describes the GPU of the current context: "NVIDIA H100 at 0000:3b:00.0 of HOST".
int Describe(const Driver& driver, std::string* description) {
  int device = 0;
  std::pair<std::string, std::string> identity;
  char host[256] = {};
  int error = driver.CtxGetDevice(&device);
  if (error == kCudaSuccess) error = Identify(driver, device, &identity);
  gethostname(host, sizeof(host) - 1);
  *description = identity.second + " at " + identity.first + " of " + host;
  return error;
}

// The one Gpu of this context. It is never deleted, because streams and callers may be destroyed in
// any order.
Gpu* GpuOfContext(const Driver& driver, CudaContext context, Status* status) {
  static std::mutex mutex;
  static auto* const gpus = new std::map<CudaContext, std::unique_ptr<Gpu>>;
  std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<Gpu>& gpu = (*gpus)[context];
  if (gpu == nullptr) *status = MakeDriverGpu(driver, context, &gpu);
  return gpu.get();
}

}  // namespace

Status MakeDriverGpu(const Driver& driver, CudaContext context, std::unique_ptr<Gpu>* gpu) {
  const InContext in_context(driver, context);
  std::string description;
  int error = in_context.error();
  if (error == kCudaSuccess) error = Describe(driver, &description);
  if (error != kCudaSuccess) {
    return Status(Code::kInternal, "the CUDA driver does not say to which GPU a stream belongs: " +
                                       CudaErrorText(driver, error));
  }
  *gpu = std::make_unique<DriverGpu>(driver, context, description);
  return Status();
}

Status ContextOf(GpuStream stream, const Driver** driver, CudaContext* context) {
  Status status;
  *driver = LoadDriver(&status);
  if (*driver == nullptr) return status;
  const int error = (*driver)->StreamGetCtx(stream, context);
  if (error == kCudaSuccess) return Status();
  return Status(Code::kInternal, "the CUDA driver does not know this stream: cuStreamGetCtx: " +
                                     CudaErrorText(**driver, error));
}

Gpu* GpuOf(GpuStream stream, Status* status) {
  const Driver* driver = nullptr;
  CudaContext context = nullptr;
  *status = ContextOf(stream, &driver, &context);
  return status->ok() ? GpuOfContext(*driver, context, status) : nullptr;
}

Status CountGpus(int* count) {
  *count = 0;
  Status status;
  const Driver* const driver = LoadDriver(&status);
  if (driver == nullptr) return status;
  const int error = driver->DeviceGetCount(count);
  if (error == kCudaSuccess) return Status();
  return Status(Code::kInternal, "cuDeviceGetCount: " + CudaErrorText(*driver, error));
}

Status ListGpus(std::vector<std::pair<std::string, std::string>>* gpus) {
  int count = 0;
  Status status = CountGpus(&count);
  for (int i = 0; status.ok() && i < count; ++i) {
    const Driver& driver = *LoadDriver(&status);
    int device = 0;
    std::pair<std::string, std::string> identity;
    int error = driver.DeviceGet(&device, i);
    if (error == kCudaSuccess) error = Identify(driver, device, &identity);
    if (error != kCudaSuccess) {
      return Status(Code::kInternal, "cannot identify GPU " + std::to_string(i) + ": " +
                                         CudaErrorText(driver, error));
    }
    gpus->push_back(std::move(identity));
  }
  return status;
}

Status OpenGpu(int ordinal, Gpu** gpu, GpuStream* stream) {
  Status status;
  const Driver* const driver = LoadDriver(&status);
  if (driver == nullptr) return status;
  int device = 0;
  CudaContext context = nullptr;
  int error = driver->DeviceGet(&device, ordinal);
  if (error == kCudaSuccess) error = driver->DevicePrimaryCtxRetain(&context, device);
  if (error != kCudaSuccess) {
    return Status(Code::kInternal, "cannot open GPU " + std::to_string(ordinal) + ": " +
                                       CudaErrorText(*driver, error));
  }
  *gpu = GpuOfContext(*driver, context, &status);
  return *gpu == nullptr ? status : (*gpu)->NewStream(stream);
}

}  // namespace tfmpi
