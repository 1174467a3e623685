// Shared by the tests of the simulated GPU.

#ifndef TFMPI_TESTS_CORE_DEVICE_SIMULATED_GPU_FIXTURE_H_
#define TFMPI_TESTS_CORE_DEVICE_SIMULATED_GPU_FIXTURE_H_

#include <functional>

#include "gtest/gtest.h"
#include "tests/core/device/simulated_gpu.h"
#include "tests/core/device/test_gpu.h"
#include "tests/core/support/ranks.h"

namespace tfmpi {

inline constexpr int kCount = 100;
inline constexpr size_t kBytes = kCount * sizeof(int);

inline SimulatedGpu::Options Late() {
  SimulatedGpu::Options options;
  options.schedule = SimulatedGpu::Schedule::kLate;
  return options;
}

// A GPU with two streams and memory of both kinds, and functions that enqueue work.
class Device {
 public:
  explicit Device(const SimulatedGpu::Options& options = Late())
      : gpu(options),
        first(gpu.NewStream()),
        second(gpu.NewStream()),
        event(gpu.NewEvent()),
        device(gpu.NewMemory(kBytes)),
        pinned(static_cast<int*>(gpu.NewPinned(kBytes))) {}

  SimulatedGpu& simulated() { return *gpu.simulated(); }

  void Fill(int value, GpuStream stream) {
    const auto body = [this, value] {
      int* const inside = simulated().Inside<int>(device, kCount);
      for (int i = 0; i < kCount; ++i) inside[i] = value;
    };
    EXPECT_EQ(simulated().Launch(stream, body, {device}).message(), "");
  }
  void CopyToHost(GpuStream stream) {
    EXPECT_EQ(gpu->Copy(pinned, device, kBytes, stream).message(), "");
  }
  void CopyToGpu(GpuStream stream) {
    EXPECT_EQ(gpu->Copy(device, pinned, kBytes, stream).message(), "");
  }
  void Record(GpuStream stream) { EXPECT_EQ(gpu->Record(event, stream).message(), ""); }
  void Wait(GpuStream stream) { EXPECT_EQ(gpu->Wait(stream, event).message(), ""); }
  void SetPinned(int value) {
    for (int i = 0; i < kCount; ++i) pinned[i] = value;
  }

  TestGpu gpu;
  GpuStream first;
  GpuStream second;
  GpuEvent event;
  void* device;
  int* pinned;
};

// Base of tests of the simulation itself, which are skipped on a real GPU.
class SimulatedGpuTest : public TimedTest {
 protected:
  void SetUp() override {
    if (TestGpu::IsReal()) GTEST_SKIP() << "of the simulation alone";
    ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  }

  // `body` lacks a wait: ThreadSanitizer must report it; without ThreadSanitizer, `body` checks
  // that data is stale.
  static void ExpectRace(const std::function<void()>& body) {
#if defined(__SANITIZE_THREAD__)
    EXPECT_DEATH(body(), "data race");
#else
    body();
#endif
  }
};

}  // namespace tfmpi

#endif  // TFMPI_TESTS_CORE_DEVICE_SIMULATED_GPU_FIXTURE_H_
