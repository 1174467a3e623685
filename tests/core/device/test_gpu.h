// The GPU of a test that is the same on a simulated and on a real one: the machine's first GPU with
// TFMPI_TEST_GPU=1 (bazel test --test_env=TFMPI_TEST_GPU=1), else a simulated one.

#ifndef TFMPI_TESTS_CORE_DEVICE_TEST_GPU_H_
#define TFMPI_TESTS_CORE_DEVICE_TEST_GPU_H_

#include <memory>
#include <vector>

#include "tensorflow_patches/core/device/gpu.h"
#include "tests/core/device/simulated_gpu.h"

namespace tfmpi {

// One thread at a time.
class TestGpu {
 public:
  // `options` are for a simulated one. Ends the process if there is no real one but should be.
  explicit TestGpu(const SimulatedGpu::Options& options = SimulatedGpu::Options());
  // The same GPU, for another thread, with streams and memory of its own. It ends before `first`.
  explicit TestGpu(TestGpu* first);
  ~TestGpu();
  TestGpu(const TestGpu&) = delete;
  TestGpu& operator=(const TestGpu&) = delete;

  static bool IsReal();

  Gpu& operator*() { return *gpu_; }
  Gpu* operator->() { return gpu_; }
  // Null: the GPU is real.
  SimulatedGpu* simulated() { return simulated_; }

  // Deleted in the end.
  GpuStream NewStream();
  GpuEvent NewEvent();
  void* NewMemory(size_t bytes);
  void* NewPinned(size_t bytes);

  // Enqueued: `data` into memory of the GPU. The copy in pinned memory is deleted in the end.
  void Write(void* device, const std::vector<char>& data, GpuStream stream);
  // What is there after all that was enqueued on `stream`. Waits.
  std::vector<char> Read(const void* device, size_t bytes, GpuStream stream);
  // The host waits until `event` has ended, as it does nowhere in the product.
  void Await(GpuEvent event);

 private:
  std::unique_ptr<SimulatedGpu> owned_;
  SimulatedGpu* simulated_ = nullptr;
  Gpu* gpu_ = nullptr;
  std::vector<GpuStream> streams_;
  std::vector<GpuEvent> events_;
  std::vector<void*> memory_;
  std::vector<void*> pinned_;
};

}  // namespace tfmpi

#endif  // TFMPI_TESTS_CORE_DEVICE_TEST_GPU_H_
