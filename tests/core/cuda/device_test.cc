// What every Gpu does: the simulated one and, with TFMPI_TEST_GPU=1, the CUDA driver's.

#include <cstring>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tensorflow_patches/core/device/driver.h"
#include "tests/core/device/test_gpu.h"
#include "tests/core/support/ranks.h"

namespace tfmpi {
namespace {

class DeviceTest : public TimedTest {};

std::vector<char> Pattern(size_t bytes, int seed) {
  std::vector<char> data(bytes);
  std::iota(data.begin(), data.end(), static_cast<char>(seed * 31));
  return data;
}

TEST_F(DeviceTest, DataGoesThroughStreamsThatWaitForOneAnother) {
  constexpr size_t kBytes = 100003;
  TestGpu gpu;
  const GpuStream in = gpu.NewStream();
  const GpuStream inside = gpu.NewStream();
  const GpuStream out = gpu.NewStream();
  const GpuEvent arrived = gpu.NewEvent();
  const GpuEvent moved = gpu.NewEvent();
  const GpuEvent left = gpu.NewEvent();
  void* const first = gpu.NewMemory(kBytes);
  void* const second = gpu.NewMemory(kBytes);
  char* const from = static_cast<char*>(gpu.NewPinned(kBytes));
  char* const to = static_cast<char*>(gpu.NewPinned(kBytes));
  for (int step = 0; step < 20; ++step) {
    const std::vector<char> data = Pattern(kBytes, step);
    std::memcpy(from, data.data(), kBytes);
    EXPECT_EQ(gpu->Copy(first, from, kBytes, in).message(), "");
    EXPECT_EQ(gpu->Record(arrived, in).message(), "");
    EXPECT_EQ(gpu->Wait(inside, arrived).message(), "");
    EXPECT_EQ(gpu->Copy(second, first, kBytes, inside).message(), "");
    EXPECT_EQ(gpu->Record(moved, inside).message(), "");
    EXPECT_EQ(gpu->Wait(out, moved).message(), "");
    EXPECT_EQ(gpu->Copy(to, second, kBytes, out).message(), "");
    EXPECT_EQ(gpu->Record(left, out).message(), "");
    gpu.Await(left);
    EXPECT_EQ(std::vector<char>(to, to + kBytes), data) << "step " << step;
  }
}

TEST_F(DeviceTest, ThreadsHaveStreamsOfTheirOwn) {
  constexpr size_t kBytes = 5000;
  TestGpu gpu;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&gpu, i] {
      TestGpu mine(&gpu);
      const GpuStream stream = mine.NewStream();
      void* const memory = mine.NewMemory(kBytes);
      for (int step = 0; step < 10; ++step) {
        const std::vector<char> data = Pattern(kBytes, i * 10 + step);
        mine.Write(memory, data, stream);
        EXPECT_EQ(mine.Read(memory, kBytes, stream), data);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(DeviceTest, AnEventThatWasNeverRecordedHasEnded) {
  TestGpu gpu;
  const GpuEvent event = gpu.NewEvent();
  bool ended = false;
  EXPECT_EQ(gpu->Query(event, &ended).message(), "");
  EXPECT_TRUE(ended);
  const GpuStream stream = gpu.NewStream();
  EXPECT_EQ(gpu->Wait(stream, event).message(), "");
  void* const memory = gpu.NewMemory(8);
  gpu.Write(memory, Pattern(8, 1), stream);
  EXPECT_EQ(gpu.Read(memory, 8, stream), Pattern(8, 1));
}

TEST_F(DeviceTest, DeletionsDoNotDisturbWorkUnderWay) {
  constexpr size_t kBytes = 1 << 20;
  TestGpu gpu;
  void* const memory = gpu.NewMemory(kBytes);
  const GpuStream reader = gpu.NewStream();
  const std::vector<char> data = Pattern(kBytes, 3);
  GpuStream stream = nullptr;
  GpuEvent event = nullptr;
  void* pinned = nullptr;
  ASSERT_EQ(gpu->NewStream(&stream).message(), "");
  ASSERT_EQ(gpu->NewEvent(&event).message(), "");
  ASSERT_EQ(gpu->NewPinned(kBytes, &pinned).message(), "");
  std::memcpy(pinned, data.data(), kBytes);
  EXPECT_EQ(gpu->Copy(memory, pinned, kBytes, stream).message(), "");
  EXPECT_EQ(gpu->Record(event, stream).message(), "");
  EXPECT_EQ(gpu->Wait(reader, event).message(), "");
  gpu->Delete(event);
  gpu->Delete(stream);
  gpu->DeletePinned(pinned);
  EXPECT_EQ(gpu.Read(memory, kBytes, reader), data);
}

TEST_F(DeviceTest, AnErrorSaysWhatOfHowMuchAndWhere) {
  TestGpu gpu;
  EXPECT_NE(gpu->description(), "");
  void* memory = nullptr;
  constexpr size_t kTooMuch = size_t{1} << 46;
  const Status status = gpu->NewMemory(kTooMuch, &memory);
  EXPECT_EQ(status.code(), Code::kInternal);
  EXPECT_EQ(status.message(), "cuMemAlloc of 70368744177664 bytes on " + gpu->description() +
                                  ": CUDA_ERROR_OUT_OF_MEMORY (out of memory)");
  bool ended = false;
  EXPECT_EQ(gpu->Query(gpu.NewEvent(), &ended).message(), "") << "it goes on after that";
}

TEST_F(DeviceTest, TheDriversGpuIsOneObject) {
  GpuStream stream = nullptr;
  Gpu* gpu = nullptr;
  Status status = OpenGpu(0, &gpu, &stream);
  if (!TestGpu::IsReal()) {
    EXPECT_EQ(status.code(), Code::kFailedPrecondition);
    EXPECT_NE(status.message().find("libcuda.so.1"), std::string::npos) << status.message();
    EXPECT_EQ(GpuOf(nullptr, &status), nullptr);
    EXPECT_EQ(status.code(), Code::kFailedPrecondition);
    return;
  }
  ASSERT_EQ(status.message(), "");
  EXPECT_EQ(GpuOf(stream, &status), gpu) << status.message();
  Gpu* same = nullptr;
  std::thread other([&] { same = GpuOf(stream, &status); });
  other.join();
  EXPECT_EQ(same, gpu);
  gpu->Delete(stream);
}

}  // namespace
}  // namespace tfmpi
