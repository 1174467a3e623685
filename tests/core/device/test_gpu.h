// The GPU of tests that run on a simulated or on a real one: the machine's first GPU with
// TFMPI_TEST_GPU=1 (bazel test --test_env=TFMPI_TEST_GPU=1), else a simulated one.

#ifndef TFMPI_TESTS_CORE_DEVICE_TEST_GPU_H_
#define TFMPI_TESTS_CORE_DEVICE_TEST_GPU_H_

#include <memory>
#include <vector>

#include "tensorflow_patches/core/device/gpu.h"
#include "tests/core/device/simulated_gpu.h"

namespace tfmpi {

// Used by one thread at a time.
class TestGpu {
 public:
  // `options` are for a simulated GPU. Ends the process if TFMPI_TEST_GPU=1 and there is no GPU.
  explicit TestGpu(const SimulatedGpu::Options& options = SimulatedGpu::Options());
  // The same GPU for another thread, with its own streams and memory. `first` must outlive it.
  explicit TestGpu(TestGpu* first);
  ~TestGpu();
  TestGpu(const TestGpu&) = delete;
  TestGpu& operator=(const TestGpu&) = delete;

  static bool IsReal();

  Gpu& operator*() { return *gpu_; }
  Gpu* operator->() { return gpu_; }
  // Null if the GPU is real.
  SimulatedGpu* simulated() { return simulated_; }

  // The destructor deletes these.
  GpuStream NewStream();
  GpuEvent NewEvent();
  void* NewMemory(size_t bytes);
  void* NewPinned(size_t bytes);

  // Enqueues a copy of `data`, through pinned memory that the destructor deletes, to the GPU.
  void Write(void* device, const std::vector<char>& data, GpuStream stream);
  // The contents after all that was enqueued on `stream`, for which it waits.
  std::vector<char> Read(const void* device, size_t bytes, GpuStream stream);
  // Waits on the host until `event` has ended, which the product never does.
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
