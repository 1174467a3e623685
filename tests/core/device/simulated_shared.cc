// The functions of a simulated GPU that ranks share: registered host memory, memory by handles, and
// the kernel that sums.

#include <cmath>
#include <utility>

#include "tests/core/device/simulated_gpu.h"
#include "tests/core/device/unseen.h"
#include "tests/core/support/elements.h"

namespace tfmpi {
namespace {

class SimulatedSum : public GpuSum {
 public:
  SimulatedSum(SimulatedGpu* gpu, size_t sources) : gpu_(*gpu), sources_(sources) {}

  // As the kernel does it: the first product, then each product and sum as one operation, in
  // float32 or double.
  Status Enqueue(const std::vector<const void*>& sources, const std::vector<double>& scales,
                 void* out, size_t count, DataType type, GpuStream stream) override {
    const size_t bytes = count * SizeOf(type);
    if (sources.size() != sources_ || scales.size() != sources_ || IsComplex(type) ||
        !IsFloating(type)) {
      return Status(Code::kInternal, "the kernel has no such sum");
    }
    const auto body = [gpu = &gpu_, sources, scales, out, count, type, bytes] {
      std::vector<const char*> from;
      for (const void* source : sources) from.push_back(gpu->Inside<char>(source, bytes));
      char* const to = gpu->Inside<char>(out, bytes);
      for (size_t i = 0; i < count; ++i) {
        if (type == DataType::kFloat64) {
          SetComponent(type, to, i, Sum<double>(type, from, scales, i));
        } else {
          SetComponent(type, to, i, Sum<float>(type, from, scales, i));
        }
      }
    };
    return gpu_.Launch(stream, body, Uses(sources, out));
  }

 private:
  template <typename Real>
  static Real Sum(DataType type, const std::vector<const char*>& from,
                  const std::vector<double>& scales, size_t i) {
    Real sum = static_cast<Real>(GetComponent(type, from[0], i)) * static_cast<Real>(scales[0]);
    for (size_t k = 1; k < from.size(); ++k) {
      sum = std::fma(static_cast<Real>(GetComponent(type, from[k], i)),
                     static_cast<Real>(scales[k]), sum);
    }
    return sum;
  }

  static std::vector<const void*> Uses(std::vector<const void*> sources, const void* out) {
    sources.push_back(out);
    return sources;
  }

  SimulatedGpu& gpu_;
  const size_t sources_;
};

}  // namespace

Status SimulatedGpu::Register(void* memory, size_t bytes) {
  UnseenLock lock(mutex_);
  const Status status = Begin(Call::kRegister, "cuMemHostRegister", bytes);
  if (!status.ok()) return status;
  if (memory_.Register(static_cast<char*>(memory), bytes) != nullptr) return Status();
  return Complain("cuMemHostRegister of " + std::to_string(bytes) +
                  " bytes: CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED (part of it)");
}

void SimulatedGpu::Unregister(void* memory) {
  Deallocate(memory, "cuMemHostUnregister", true, true);
}

Status SimulatedGpu::NewSharedMemory(size_t bytes, void** memory, GpuHandle* handle) {
  const Status status = NewMemory(bytes, memory);
  if (status.ok()) {
    *handle = GpuHandle();
    handle->address = reinterpret_cast<uintptr_t>(*memory);
  }
  return status;
}

Status SimulatedGpu::OpenMemory(const GpuHandle& handle, void** memory) {
  UnseenLock lock(mutex_);
  const Status status = Begin(Call::kOpenMemory, "cuIpcOpenMemHandle");
  if (!status.ok()) return status;
  std::string why;
  const auto address = reinterpret_cast<void*>(handle.address);
  const Block* const block = memory_.Find(address, 0, &why);
  if (block == nullptr || block->start != address) {
    return Status(Code::kInternal, "cuIpcOpenMemHandle on " + options_.description + ": " + why);
  }
  ++opened_[address];
  *memory = address;
  return status;
}

void SimulatedGpu::CloseMemory(const GpuHandle& handle, void* memory) {
  UnseenLock lock(mutex_);
  if (reinterpret_cast<uintptr_t>(memory) != handle.address || opened_[memory] == 0) {
    Complain("cuIpcCloseMemHandle: it is not open");
    return;
  }
  --opened_[memory];
}

Status SimulatedGpu::NewSum(size_t sources, std::unique_ptr<GpuSum>* sum) {
  UnseenLock lock(mutex_);
  const Status status = Begin(Call::kNewSum, "cuModuleLoadData");
  if (status.ok()) *sum = std::make_unique<SimulatedSum>(this, sources);
  return status;
}

}  // namespace tfmpi
