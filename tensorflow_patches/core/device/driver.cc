#include "tensorflow_patches/core/device/driver.h"

#include <unistd.h>

#include <map>
#include <memory>
#include <mutex>

namespace tfmpi {
namespace {

// The driver itself is safe to call on any thread; this keeps nothing that changes.
class DriverGpu : public Gpu {
 public:
  DriverGpu(const Driver& driver, CudaContext context, std::string description)
      : driver_(driver), context_(context), description_(std::move(description)) {}

  std::string description() const override { return description_; }

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

  // An error here is one of earlier work, which whoever asks for that work's event is told.
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

  // That cuMemFreeHost waits for the GPU is its habit, and nowhere promised.
  void DeletePinned(void* memory) override {
    Call("cuMemFreeHost", [&] {
      driver_.CtxSynchronize();
      return driver_.MemFreeHost(memory);
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

 private:
  static unsigned long long Address(const void* memory) {
    return reinterpret_cast<unsigned long long>(memory);
  }

  // `bytes`: none are spoken of if 0.
  template <typename Function>
  Status Call(const char* name, const Function& function, size_t bytes = 0) {
    const InContext in_context(driver_, context_);
    const int error = in_context.error() != kCudaSuccess ? in_context.error() : function();
    if (error == kCudaSuccess) return Status();
    const std::string of = bytes == 0 ? "" : " of " + std::to_string(bytes) + " bytes";
    return Status(Code::kInternal, std::string(name) + of + " on " + description_ + ": " +
                                       CudaErrorText(driver_, error));
  }

  const Driver& driver_;
  const CudaContext context_;
  const std::string description_;
};

// The current context's GPU: "NVIDIA H100 at 0000:3b:00.0 of HOST".
int Describe(const Driver& driver, std::string* description) {
  int device = 0;
  char name[256] = {};
  char address[32] = {};
  char host[256] = {};
  int error = driver.CtxGetDevice(&device);
  if (error == kCudaSuccess) error = driver.DeviceGetName(name, sizeof(name) - 1, device);
  if (error == kCudaSuccess) error = driver.DeviceGetPCIBusId(address, sizeof(address), device);
  gethostname(host, sizeof(host) - 1);
  *description = std::string(name) + " at " + address + " of " + host;
  return error;
}

// All that are known; they are never deleted, for streams and callers outlive any order of ends.
Gpu* InContextOf(const Driver& driver, CudaContext context, Status* status) {
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
    return Status(Code::kInternal, "the CUDA driver does not say which GPU a stream is of: " +
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
  return Status(Code::kInternal, "the CUDA driver does not know a stream: cuStreamGetCtx: " +
                                     CudaErrorText(**driver, error));
}

Gpu* GpuOf(GpuStream stream, Status* status) {
  const Driver* driver = nullptr;
  CudaContext context = nullptr;
  *status = ContextOf(stream, &driver, &context);
  return status->ok() ? InContextOf(*driver, context, status) : nullptr;
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
    char name[256] = {};
    char address[32] = {};
    int error = driver.DeviceGet(&device, i);
    if (error == kCudaSuccess) error = driver.DeviceGetName(name, sizeof(name) - 1, device);
    if (error == kCudaSuccess) error = driver.DeviceGetPCIBusId(address, sizeof(address), device);
    if (error != kCudaSuccess) {
      return Status(Code::kInternal, "GPU " + std::to_string(i) + " does not say what it is: " +
                                         CudaErrorText(driver, error));
    }
    gpus->emplace_back(address, name);
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
    return Status(Code::kInternal, "GPU " + std::to_string(ordinal) +
                                       " cannot be opened: " + CudaErrorText(*driver, error));
  }
  *gpu = InContextOf(*driver, context, &status);
  return *gpu == nullptr ? status : (*gpu)->NewStream(stream);
}

}  // namespace tfmpi
