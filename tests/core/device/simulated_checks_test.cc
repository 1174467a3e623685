// What the simulated GPU complains of, and how it fails on demand.

#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "gtest/gtest-spi.h"
#include "gtest/gtest.h"
#include "tests/core/device/simulated_gpu.h"
#include "tests/core/device/simulated_gpu_fixture.h"

namespace tfmpi {
namespace {

using Call = SimulatedGpu::Call;

using SimulatedChecksTest = SimulatedGpuTest;

TEST_F(SimulatedChecksTest, TheHostDiesWhenItTouchesTheGpusMemory) {
  EXPECT_DEATH(
      {
        Device device;
        *static_cast<volatile int*>(device.device) = 1;
      },
      "");
  EXPECT_DEATH(
      {
        Device device;
        std::memcpy(device.pinned, device.device, kBytes);
      },
      "");
  EXPECT_DEATH(
      {
        Device device;
        device.simulated().Inside<int>(device.device, 1);
      },
      "for kernels of this GPU only");
  EXPECT_DEATH(
      {
        Device device;
        device.simulated().Launch(
            device.first, [&] { device.simulated().Inside<int>(device.device, kCount + 1); });
        device.simulated().Finish(device.first);
      },
      "memory of this GPU of 400 bytes, of which byte 0 is the first");
  EXPECT_DEATH(
      {
        SimulatedGpu gpu;
        void* pinned = nullptr;
        gpu.NewPinned(8, &pinned);
        gpu.DeletePinned(pinned);
        *static_cast<volatile char*>(pinned) = 1;
      },
      "");
}

TEST_F(SimulatedChecksTest, NewMemoryIsNotANumber) {
  Device device;
  EXPECT_TRUE(std::isnan(reinterpret_cast<float*>(device.pinned)[0]));
  device.CopyToHost(device.first);
  device.simulated().Finish(device.first);
  EXPECT_TRUE(std::isnan(reinterpret_cast<float*>(device.pinned)[kCount - 1]));
}

TEST_F(SimulatedChecksTest, ComplainsOfCopiesThatAGpuCannotMake) {
  SimulatedGpu other;
  void* foreign = nullptr;
  ASSERT_TRUE(other.NewMemory(kBytes, &foreign).ok());
  Device device;
  SimulatedGpu& gpu = device.simulated();
  std::vector<int> pageable(kCount);
  const auto copy = [&](void* to, const void* from, size_t bytes) {
    EXPECT_FALSE(gpu.Copy(to, from, bytes, device.first).ok());
    const std::vector<std::string> said = gpu.TakeComplaints();
    return said.size() == 1 ? said[0] : "";
  };
  EXPECT_EQ(copy(device.device, pageable.data(), kBytes),
            "cuMemcpyAsync of 400 bytes: the source is neither memory of this GPU nor pinned");
  EXPECT_EQ(copy(foreign, device.pinned, kBytes),
            "cuMemcpyAsync of 400 bytes: the target is neither memory of this GPU nor pinned");
  EXPECT_EQ(copy(device.device, device.pinned + 1, kBytes),
            "cuMemcpyAsync of 400 bytes: the source is pinned memory of 400 bytes, of which byte 4 "
            "is the first");
  void* deleted = nullptr;
  ASSERT_TRUE(gpu.NewMemory(kBytes, &deleted).ok());
  gpu.DeleteMemory(deleted);
  EXPECT_EQ(copy(device.pinned, deleted, kBytes),
            "cuMemcpyAsync of 400 bytes: the source is memory of this GPU of 400 bytes that was "
            "deleted");
  other.DeleteMemory(foreign);
}

TEST_F(SimulatedChecksTest, ComplainsOfHandlesThatWereDeleted) {
  SimulatedGpu gpu;
  GpuStream stream = nullptr;
  GpuEvent event = nullptr;
  void* memory = nullptr;
  ASSERT_TRUE(gpu.NewStream(&stream).ok());
  ASSERT_TRUE(gpu.NewEvent(&event).ok());
  ASSERT_TRUE(gpu.NewPinned(8, &memory).ok());
  gpu.DeleteMemory(memory);  // of the wrong kind
  gpu.DeletePinned(memory);
  gpu.DeletePinned(memory);
  gpu.Delete(stream);
  EXPECT_FALSE(gpu.Record(event, stream).ok());
  gpu.Delete(event);
  bool ended = false;
  EXPECT_FALSE(gpu.Query(event, &ended).ok());
  EXPECT_EQ(gpu.TakeComplaints(),
            (std::vector<std::string>{
                "cuMemFree: it is pinned memory of 8 bytes",
                "cuMemFreeHost: it is pinned memory of 8 bytes that was deleted",
                "cuEventRecord: the stream was deleted", "cuEventRecord: nothing was recorded",
                "cuEventQuery: the event was deleted", "cuEventQuery: no event"}));
}

TEST_F(SimulatedChecksTest, ComplainsOfWhatIsLeft) {
  EXPECT_NONFATAL_FAILURE(
      {
        SimulatedGpu gpu;
        GpuStream stream = nullptr;
        gpu.NewStream(&stream);
      },
      "1 not deleted: streams");
  EXPECT_NONFATAL_FAILURE(
      {
        SimulatedGpu gpu;
        GpuEvent event = nullptr;
        gpu.NewEvent(&event);
      },
      "1 not deleted: events");
  EXPECT_NONFATAL_FAILURE(
      {
        SimulatedGpu gpu;
        void* memory = nullptr;
        gpu.NewPinned(8, &memory);
      },
      "1 not deleted: blocks of pinned memory");
  EXPECT_NONFATAL_FAILURE(
      {
        SimulatedGpu gpu;
        void* memory = nullptr;
        gpu.NewMemory(8, &memory);
      },
      "1 not deleted: blocks of the GPU's memory");
}

TEST_F(SimulatedChecksTest, MemoryInUseIsDeletedWhenItIsNot) {
  Device device;
  void* memory = nullptr;
  ASSERT_TRUE(device.gpu->NewPinned(kBytes, &memory).ok());
  std::memset(memory, 0, kBytes);
  ASSERT_TRUE(device.gpu->Copy(device.device, memory, kBytes, device.first).ok());
  device.gpu->DeletePinned(memory);
  EXPECT_EQ(device.simulated().counts().host_waits, 1);
  device.CopyToHost(device.first);
  device.simulated().Finish(device.first);
  EXPECT_EQ(device.pinned[kCount - 1], 0);
  EXPECT_EQ(device.simulated().counts().host_waits, 2);
}

TEST_F(SimulatedChecksTest, AStreamThatStandsStillForGood) {
  Device device;
  device.SetPinned(1);
  SimulatedGpu& gpu = device.simulated();
  const GpuStream still = device.gpu.NewStream();
  const GpuEvent other = device.gpu.NewEvent();
  void* memory = nullptr;
  ASSERT_TRUE(gpu.NewPinned(kBytes, &memory).ok());
  gpu.Hold(still);
  ASSERT_TRUE(gpu.Copy(memory, memory, kBytes, still).ok());
  device.Record(still);
  device.Wait(device.first);  // for what never ends
  device.CopyToGpu(device.second);
  ASSERT_TRUE(gpu.Record(other, device.second).ok());
  device.gpu.Await(other);
  bool ended = true;
  EXPECT_TRUE(gpu.Query(device.event, &ended).ok());
  EXPECT_FALSE(ended);
  gpu.DeletePinned(memory);
  EXPECT_EQ(
      gpu.TakeComplaints(),
      std::vector<std::string>{"cuMemFreeHost: waits for ever, for a stream that stands still"});
  gpu.Launch(still, [] { FAIL() << "it stands still"; });
}

TEST_F(SimulatedChecksTest, CallsFailOnDemand) {
  Device device;
  SimulatedGpu& gpu = device.simulated();
  device.SetPinned(1);
  const auto fails = [&gpu](Call call, const std::function<Status()>& function) {
    gpu.Fail(call, 2);
    EXPECT_EQ(function().message(), "");
    const Status second = function();
    EXPECT_EQ(second.code(), Code::kInternal);
    EXPECT_EQ(function().message(), "");
    return second.message();
  };
  EXPECT_EQ(fails(Call::kCopy,
                  [&] { return gpu.Copy(device.device, device.pinned, kBytes, device.first); }),
            "cuMemcpyAsync of 400 bytes on simulated GPU 0: CUDA_ERROR_UNKNOWN (as the test wants "
            "it)");
  EXPECT_EQ(gpu.counts().copies_to_gpu, 2);
  EXPECT_EQ(gpu.counts().bytes_to_gpu, 2 * kBytes);
  bool ended = false;
  fails(Call::kRecord, [&] { return gpu.Record(device.event, device.first); });
  fails(Call::kWait, [&] { return gpu.Wait(device.second, device.event); });
  fails(Call::kQuery, [&] { return gpu.Query(device.event, &ended); });
  const auto made = [](Status status, const std::function<void()>& end) {
    if (status.ok()) end();
    return status;
  };
  fails(Call::kNewStream, [&] {
    GpuStream stream = nullptr;
    return made(gpu.NewStream(&stream), [&] { gpu.Delete(stream); });
  });
  fails(Call::kNewEvent, [&] {
    GpuEvent event = nullptr;
    return made(gpu.NewEvent(&event), [&] { gpu.Delete(event); });
  });
  void* memory = nullptr;
  fails(Call::kNewPinned,
        [&] { return made(gpu.NewPinned(8, &memory), [&] { gpu.DeletePinned(memory); }); });
  fails(Call::kNewMemory,
        [&] { return made(gpu.NewMemory(8, &memory), [&] { gpu.DeleteMemory(memory); }); });
}

// As on a GPU, whose context is lost with the first error of a kernel.
TEST_F(SimulatedChecksTest, WorkFailsOnDemandAndThenAllDoes) {
  Device device;
  SimulatedGpu& gpu = device.simulated();
  device.SetPinned(1);
  gpu.FailWork(2);
  device.Fill(7, device.first);
  device.CopyToHost(device.first);
  device.Record(device.first);
  Status status;
  for (bool ended = false; status.ok() && !ended;) status = gpu.Query(device.event, &ended);
  EXPECT_EQ(status.message(),
            "cuEventQuery on simulated GPU 0: CUDA_ERROR_LAUNCH_FAILED (as the test wants it)");
  EXPECT_EQ(device.pinned[0], 1);
  EXPECT_FALSE(gpu.Copy(device.device, device.pinned, kBytes, device.second).ok());
}

}  // namespace
}  // namespace tfmpi
