// How the driver is called, and what becomes of its errors. What a GPU does: device_test.cc.

#include "tensorflow_patches/core/device/driver.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/core/cuda/fake_driver.h"

namespace tfmpi {
namespace {

using Calls = std::vector<std::string>;

const GpuStream kStream = reinterpret_cast<GpuStream>(0x30);
const GpuEvent kEvent = reinterpret_cast<GpuEvent>(0x40);

// For as long as the process lives.
const char* Kept(const std::string& name) {
  static auto* const names = new std::set<std::string>;
  return names->insert(name).first->c_str();
}

// Memory of other processes, and kernels.
void AddSharing(Driver* driver) {
  driver->IpcGetMemHandle = [](CudaIpcHandle* handle, unsigned long long memory) {
    std::strcpy(handle->bytes, "theirs");
    return FakeDriver::Call("share", std::to_string(memory));
  };
  driver->IpcOpenMemHandle = [](unsigned long long* memory, CudaIpcHandle handle, unsigned flags) {
    *memory = 0x7000;
    return FakeDriver::Call("open", std::string(handle.bytes) + " " + std::to_string(flags));
  };
  driver->IpcCloseMemHandle = [](unsigned long long memory) {
    return FakeDriver::Call("close", std::to_string(memory));
  };
  driver->ModuleLoadData = [](CudaModule* module, const void* image) {
    *module = reinterpret_cast<CudaModule>(0x50);
    return FakeDriver::Call("load", std::string(static_cast<const char*>(image)).substr(0, 8));
  };
  driver->ModuleUnload = [](CudaModule) { return FakeDriver::Call("unload"); };
  driver->ModuleGetFunction = [](CudaFunction* function, CudaModule, const char* name) {
    *function = reinterpret_cast<CudaFunction>(const_cast<char*>(Kept(name)));
    return kCudaSuccess;
  };
  driver->LaunchKernel = [](CudaFunction function, unsigned grid, unsigned, unsigned,
                            unsigned block, unsigned, unsigned, unsigned, GpuStream stream,
                            void** arguments, void**) {
    const auto number = [&](int i) { return *static_cast<uint64_t*>(arguments[i]); };
    std::string call = reinterpret_cast<const char*>(function);
    call += " " + std::to_string(grid) + "x" + std::to_string(block);
    for (int i = 0; i < 4; ++i) call += " " + std::to_string(number(i));
    for (int i = 4; i < 6; ++i) call += " " + std::to_string(*static_cast<double*>(arguments[i]));
    return FakeDriver::Call(call, stream == kStream ? "" : "wrong");
  };
}

Driver Full() {
  Driver driver = MakeFakeDriver();
  driver.CtxGetStreamPriorityRange = [](int* least, int* greatest) {
    *least = 0;
    *greatest = -5;
    return kCudaSuccess;
  };
  driver.StreamCreateWithPriority = [](GpuStream* stream, unsigned flags, int priority) {
    *stream = kStream;
    return FakeDriver::Call("stream", std::to_string(flags) + " " + std::to_string(priority));
  };
  driver.StreamDestroy = [](GpuStream) { return FakeDriver::Call("delete stream"); };
  driver.StreamWaitEvent = [](GpuStream stream, GpuEvent event, unsigned flags) {
    const bool as_said = stream == kStream && event == kEvent && flags == 0;
    return FakeDriver::Call("wait", as_said ? "" : "wrong");
  };
  driver.EventCreate = [](GpuEvent* event, unsigned flags) {
    *event = kEvent;
    return FakeDriver::Call("event", std::to_string(flags));
  };
  driver.EventDestroy = [](GpuEvent) { return FakeDriver::Call("delete event"); };
  driver.EventRecord = [](GpuEvent event, GpuStream stream) {
    return FakeDriver::Call("record", event == kEvent && stream == kStream ? "" : "wrong");
  };
  driver.EventQuery = [](GpuEvent) { return FakeDriver::Call("query"); };
  driver.MemcpyAsync = [](unsigned long long to, unsigned long long from, size_t bytes, GpuStream) {
    return FakeDriver::Call(
        "copy", std::to_string(to) + " " + std::to_string(from) + " " + std::to_string(bytes));
  };
  driver.MemAlloc = [](unsigned long long* memory, size_t bytes) {
    *memory = 0x1000;
    return FakeDriver::Call("memory", std::to_string(bytes));
  };
  driver.MemFree = [](unsigned long long memory) {
    return FakeDriver::Call("delete memory", std::to_string(memory));
  };
  driver.MemHostAlloc = [](void** memory, size_t bytes, unsigned flags) {
    *memory = reinterpret_cast<void*>(0x2000);
    return FakeDriver::Call("pinned", std::to_string(bytes) + " " + std::to_string(flags));
  };
  driver.MemFreeHost = [](void*) { return FakeDriver::Call("delete pinned"); };
  driver.MemHostRegister = [](void* memory, size_t bytes, unsigned flags) {
    return FakeDriver::Call("register", std::to_string(reinterpret_cast<uintptr_t>(memory)) + " " +
                                            std::to_string(bytes) + " " + std::to_string(flags));
  };
  driver.MemHostUnregister = [](void* memory) {
    return FakeDriver::Call("unregister", std::to_string(reinterpret_cast<uintptr_t>(memory)));
  };
  AddSharing(&driver);
  return driver;
}

// In a process of its own: libraries whose name is libcuda.so.1.
TEST(LoadDriverTest, ADriverThatIsOfNoUse) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto load = [](const char* library) {
    const bool found = dlopen(library, RTLD_NOW) != nullptr;
    Status status;
    LoadDriver(&status);
    std::fprintf(stderr, "%s\n", found ? status.message().c_str() : dlerror());
    std::_Exit(0);
  };
  EXPECT_EXIT(
      load("tests/core/libold_cuda.so"), ::testing::ExitedWithCode(0),
      "the CUDA driver \\(libcuda.so.1\\) has no cuGetErrorName: use a driver of CUDA 12 or "
      "newer");
  EXPECT_EXIT(load("tests/core/libbroken_cuda.so"), ::testing::ExitedWithCode(0),
              "the CUDA driver does not start: cuInit: CUDA error 100");
}

class DriverTest : public ::testing::Test {
 protected:
  void SetUp() override {
    FakeDriver::Now().current = FakeDriver::Mine();
    const Status status = MakeDriverGpu(driver_, FakeDriver::Mine(), &gpu_);
    ASSERT_EQ(status.message(), "");
    FakeDriver::Now().calls.clear();
  }

  // What was called since.
  static Calls Called() { return std::exchange(FakeDriver::Now().calls, {}); }

  std::string Description() const {
    char host[256] = {};
    gethostname(host, sizeof(host) - 1);
    return std::string("NVIDIA T at 0000:3B:00.0 of ") + host;
  }

  const Driver driver_ = Full();
  std::unique_ptr<Gpu> gpu_;
};

TEST_F(DriverTest, EachCallIsTheDriversWithItsArguments) {
  EXPECT_EQ(gpu_->description(), Description());
  GpuStream stream = nullptr;
  GpuEvent event = nullptr;
  void* memory = nullptr;
  bool ended = false;
  EXPECT_TRUE(gpu_->NewStream(&stream).ok());
  EXPECT_EQ(Called(), Calls{"stream 1 -5"}) << "independent, of highest priority";
  EXPECT_TRUE(gpu_->NewEvent(&event).ok());
  EXPECT_EQ(Called(), Calls{"event 2"}) << "without a time";
  EXPECT_TRUE(gpu_->Record(event, stream).ok());
  EXPECT_TRUE(gpu_->Wait(stream, event).ok());
  EXPECT_TRUE(gpu_->Query(event, &ended).ok());
  EXPECT_TRUE(ended);
  EXPECT_EQ(Called(), (Calls{"record", "wait", "query"}));
  EXPECT_TRUE(gpu_->NewPinned(7, &memory).ok());
  EXPECT_EQ(memory, reinterpret_cast<void*>(0x2000));
  EXPECT_EQ(Called(), Calls{"pinned 7 1"}) << "for all contexts";
  gpu_->DeletePinned(memory);
  EXPECT_EQ(Called(), (Calls{"synchronize", "delete pinned"}));
  memory = reinterpret_cast<void*>(9);
  EXPECT_TRUE(gpu_->Register(memory, 7).ok());
  EXPECT_EQ(Called(), Calls{"register 9 7 1"}) << "for all contexts";
  gpu_->Unregister(memory);
  EXPECT_EQ(Called(), (Calls{"synchronize", "unregister 9"}));
  EXPECT_TRUE(gpu_->NewMemory(9, &memory).ok());
  EXPECT_EQ(memory, reinterpret_cast<void*>(0x1000));
  EXPECT_TRUE(gpu_->Copy(memory, reinterpret_cast<void*>(0x20), 5, stream).ok());
  gpu_->DeleteMemory(memory);
  EXPECT_EQ(Called(), (Calls{"memory 9", "copy 4096 32 5", "delete memory 4096"}));
  gpu_->Delete(stream);
  gpu_->Delete(event);
  EXPECT_EQ(Called(), (Calls{"delete stream", "delete event"}));
}

TEST_F(DriverTest, MemoryIsSharedByHandles) {
  void* memory = nullptr;
  void* opened = nullptr;
  GpuHandle handle = {};
  EXPECT_TRUE(gpu_->NewSharedMemory(9, &memory, &handle).ok());
  EXPECT_EQ(Called(), (Calls{"memory 9", "share 4096"}));
  EXPECT_TRUE(gpu_->OpenMemory(handle, &opened).ok());
  EXPECT_EQ(opened, memory) << "the driver opens no process's own memory for it";
  gpu_->CloseMemory(handle, opened);
  EXPECT_EQ(Called(), Calls{});
  ++handle.process[1];
  EXPECT_TRUE(gpu_->OpenMemory(handle, &opened).ok());
  EXPECT_EQ(opened, reinterpret_cast<void*>(0x7000));
  gpu_->CloseMemory(handle, opened);
  EXPECT_EQ(Called(), (Calls{"open theirs 1", "close 28672"}));
  FakeDriver::Now().errors["share"] = 700;
  EXPECT_FALSE(gpu_->NewSharedMemory(9, &memory, &handle).ok());
  EXPECT_EQ(Called(), (Calls{"memory 9", "share 4096", "delete memory 4096"}));
}

TEST_F(DriverTest, ASumTakes16BytesAtATimeWhereItCan) {
  const auto at = [](uintptr_t address) { return reinterpret_cast<void*>(address); };
  std::unique_ptr<GpuSum> sum;
  EXPECT_TRUE(gpu_->NewSum(2, &sum).ok());
  EXPECT_EQ(Called(), Calls{"load .version"});
  const auto enqueue = [&](uintptr_t out, size_t count, DataType type) {
    EXPECT_TRUE(sum->Enqueue({at(0x100), at(0x200)}, {1, 0.5}, at(out), count, type, kStream).ok());
    return Called();
  };
  EXPECT_EQ(enqueue(0x400, 1030, DataType::kFloat32),
            (Calls{"sum_float32_wide 2x256 1024 257 256 512 1.000000 0.500000",
                   "sum_float32 1x256 5136 2 4368 4624 1.000000 0.500000"}));
  EXPECT_EQ(enqueue(0x400, 16, DataType::kFloat16),
            Calls{"sum_float16_wide 1x256 1024 2 256 512 1.000000 0.500000"});
  EXPECT_EQ(enqueue(0x408, 3, DataType::kFloat64),
            Calls{"sum_float64 1x256 1032 3 256 512 1.000000 0.500000"});
  sum.reset();
  EXPECT_EQ(Called(), Calls{"unload"});
}

TEST_F(DriverTest, AThreadsOwnContextAndCaptureModeAreGivenBack) {
  FakeDriver::Now().current = FakeDriver::Other();
  EXPECT_TRUE(gpu_->Record(kEvent, kStream).ok());
  EXPECT_EQ(Called(), (Calls{"push", "record", "pop"}));
  EXPECT_EQ(FakeDriver::Now().current, FakeDriver::Other());
  EXPECT_EQ(FakeDriver::Now().capture_mode, 0);
}

TEST_F(DriverTest, AThreadMayBeGivenTheContextForGood) {
  FakeDriver::Now().current = FakeDriver::Other();
  FakeDriver::Now().errors["set"] = 700;
  EXPECT_EQ(gpu_->MakeCurrent().message(),
            "cuCtxSetCurrent on " + Description() +
                ": CUDA_ERROR_ILLEGAL_ADDRESS (an illegal memory access was encountered)");
  EXPECT_EQ(FakeDriver::Now().current, FakeDriver::Other());
  FakeDriver::Now().errors.clear();
  EXPECT_TRUE(gpu_->MakeCurrent().ok());
  EXPECT_EQ(FakeDriver::Now().current, FakeDriver::Mine());
  EXPECT_EQ(FakeDriver::Now().capture_mode, kCaptureModeRelaxed);
  EXPECT_TRUE(gpu_->Record(kEvent, kStream).ok());
  EXPECT_EQ(Called(), Calls{"record"}) << "nothing is pushed";
  EXPECT_EQ(FakeDriver::Now().capture_mode, kCaptureModeRelaxed);
}

TEST_F(DriverTest, WhatIsNotReadyIsNoError) {
  FakeDriver::Now().errors["query"] = kCudaNotReady;
  bool ended = true;
  EXPECT_TRUE(gpu_->Query(kEvent, &ended).ok());
  EXPECT_FALSE(ended);
  FakeDriver::Now().errors["query"] = 700;
  ended = true;
  EXPECT_EQ(gpu_->Query(kEvent, &ended).message(),
            "cuEventQuery on " + Description() +
                ": CUDA_ERROR_ILLEGAL_ADDRESS (an illegal memory access was encountered)");
  EXPECT_FALSE(ended);
}

TEST_F(DriverTest, ErrorsSayWhatOfHowMuchAndWhere) {
  FakeDriver::Now().errors["copy"] = 700;
  const Status status = gpu_->Copy(nullptr, nullptr, 12, kStream);
  EXPECT_EQ(status.code(), Code::kInternal);
  EXPECT_EQ(status.message(),
            "cuMemcpyAsync of 12 bytes on " + Description() +
                ": CUDA_ERROR_ILLEGAL_ADDRESS (an illegal memory access was encountered)");
  FakeDriver::Now().errors["stream"] = 12345;
  GpuStream stream = nullptr;
  EXPECT_EQ(gpu_->NewStream(&stream).message(),
            "cuStreamCreateWithPriority on " + Description() + ": CUDA error 12345");
}

TEST_F(DriverTest, WithoutItsContextNothingIsCalled) {
  FakeDriver::Now().current = FakeDriver::Other();
  FakeDriver::Now().errors["push"] = 700;
  EXPECT_FALSE(gpu_->Record(kEvent, kStream).ok());
  EXPECT_EQ(Called(), Calls{});
  EXPECT_EQ(FakeDriver::Now().current, FakeDriver::Other());
}

}  // namespace
}  // namespace tfmpi
