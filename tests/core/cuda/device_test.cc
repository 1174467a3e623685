// What every Gpu does: the simulated one and, with TFMPI_TEST_GPU=1, the CUDA driver's.

#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tensorflow_patches/core/device/driver.h"
#include "tests/core/device/test_gpu.h"
#include "tests/core/support/elements.h"
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

// Numbers of few bits, so that a sum is exact in every type.
double Value(size_t source, size_t i) { return static_cast<double>((i * 7 + source * 3) % 29) - 9; }

TEST_F(DeviceTest, SumsOfSharedMemory) {
  constexpr size_t kMax = 5003;
  const std::vector<double> scales = {1, 0.5, -2};
  TestGpu gpu;
  const GpuStream stream = gpu.NewStream();
  std::unique_ptr<GpuSum> sum;
  ASSERT_EQ(gpu->NewSum(scales.size(), &sum).message(), "");
  std::vector<GpuHandle> handles(scales.size());
  std::vector<void*> own(scales.size());
  std::vector<const void*> opened;
  for (size_t k = 0; k < scales.size(); ++k) {
    ASSERT_EQ(gpu->NewSharedMemory(kMax * sizeof(double), &own[k], &handles[k]).message(), "");
    void* memory = nullptr;
    ASSERT_EQ(gpu->OpenMemory(handles[k], &memory).message(), "");
    opened.push_back(memory);
  }
  char* const out = static_cast<char*>(gpu.NewMemory((kMax + 2) * sizeof(double)));
  for (const DataType type :
       {DataType::kFloat16, DataType::kBfloat16, DataType::kFloat32, DataType::kFloat64}) {
    for (size_t k = 0; k < scales.size(); ++k) {
      std::vector<char> data(kMax * SizeOf(type));
      for (size_t i = 0; i < kMax; ++i) SetComponent(type, data.data(), i, Value(k, i));
      gpu.Write(own[k], data, stream);
    }
    for (const size_t count : {size_t{1}, size_t{7}, size_t{8}, size_t{1000}, kMax}) {
      for (const size_t begin : {size_t{0}, size_t{1}}) {  // at a multiple of 16 bytes or not
        const std::vector<char> before((count + begin + 1) * SizeOf(type), '\x5a');
        gpu.Write(out, before, stream);
        EXPECT_EQ(
            sum->Enqueue(opened, scales, out + begin * SizeOf(type), count, type, stream).message(),
            "");
        const std::vector<char> found = gpu.Read(out, before.size(), stream);
        std::vector<char> expected = before;
        for (size_t i = 0; i < count; ++i) {
          double total = 0;
          for (size_t k = 0; k < scales.size(); ++k) total += scales[k] * Value(k, i);
          SetComponent(type, expected.data(), i + begin, total);
        }
        EXPECT_EQ(found, expected) << Name(type) << ", " << count << " from " << begin;
      }
    }
  }
  for (size_t k = 0; k < scales.size(); ++k) {
    gpu->CloseMemory(handles[k], const_cast<void*>(opened[k]));
    gpu->DeleteMemory(own[k]);
  }
}

// Halves are rounded once, to the nearest, and of two to the even one.
TEST_F(DeviceTest, ASumOfHalvesIsRoundedOnce) {
  const std::vector<double> values = {1, 1.5, 3.1415926, -0.001, 65000, 1e-7, 255.5, -127.75};
  TestGpu gpu;
  const GpuStream stream = gpu.NewStream();
  std::unique_ptr<GpuSum> sum;
  ASSERT_EQ(gpu->NewSum(2, &sum).message(), "");
  void* const memory = gpu.NewMemory(1 << 12);
  void* const out = gpu.NewMemory(1 << 12);
  for (const DataType type : {DataType::kFloat16, DataType::kBfloat16}) {
    std::vector<char> data(values.size() * values.size() * SizeOf(type));
    std::vector<char> expected(data.size());
    const size_t count = values.size() * values.size();
    for (size_t i = 0; i < count; ++i) SetComponent(type, data.data(), i, values[i / 8]);
    gpu.Write(memory, data, stream);
    const std::vector<double> scales = {0.7f, 0.0123f};
    for (size_t i = 0; i < count; ++i) {
      const double value = GetComponent(type, data.data(), i);
      const float first = static_cast<float>(value) * 0.7f;
      SetComponent(type, expected.data(), i, std::fma(static_cast<float>(value), 0.0123f, first));
    }
    EXPECT_EQ(sum->Enqueue({memory, memory}, scales, out, count, type, stream).message(), "");
    EXPECT_EQ(gpu.Read(out, data.size(), stream), expected) << Name(type);
  }
}

TEST_F(DeviceTest, TheDriversGpuIsOneObject) {
  GpuStream stream = nullptr;
  Gpu* gpu = nullptr;
  Status status = OpenGpu(0, &gpu, &stream);
  if (!TestGpu::IsReal()) {
    EXPECT_EQ(status.code(), Code::kFailedPrecondition);
    EXPECT_NE(status.message().find("no CUDA driver on this machine: libcuda.so.1"),
              std::string::npos)
        << status.message();
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
