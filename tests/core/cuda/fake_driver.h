// A CUDA driver that records its calls, for tests of how driver.cc and nccl.cc call it and handle
// its errors.
//
// One test at a time, on one thread.

#ifndef TFMPI_TESTS_CORE_CUDA_FAKE_DRIVER_H_
#define TFMPI_TESTS_CORE_CUDA_FAKE_DRIVER_H_

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "tensorflow_patches/core/device/driver_api.h"

namespace tfmpi {

struct FakeDriver {
  CudaContext current = nullptr;
  int capture_mode = 0;
  std::map<std::string, int> errors;  // by function, the error that it returns
  std::vector<std::string> calls;     // of functions that need a context, with their details

  // Records the call, and whether the thread's context or capture mode is wrong.
  static int Call(const std::string& name, const std::string& what = "") {
    FakeDriver& fake = Now();
    std::string call = what.empty() ? name : name + " " + what;
    if (fake.current != Mine()) call += ", in a wrong context";
    if (fake.capture_mode != kCaptureModeRelaxed) call += ", which breaks a capture";
    fake.calls.push_back(call);
    const auto error = fake.errors.find(name);
    return error == fake.errors.end() ? kCudaSuccess : error->second;
  }

  static FakeDriver& Now() {
    static FakeDriver fake;
    return fake;
  }
  // The context in which calls must be made, and another one.
  static CudaContext Mine() { return reinterpret_cast<CudaContext>(0x10); }
  static CudaContext Other() { return reinterpret_cast<CudaContext>(0x20); }
};

// Resets the fake. Returns the functions that all tests need; each test adds its own.
inline Driver MakeFakeDriver() {
  FakeDriver::Now() = FakeDriver();
  Driver driver = {};
  driver.GetErrorName = [](int error, const char** name) {
    *name = error == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : nullptr;
    return error == 700 ? kCudaSuccess : 1;
  };
  driver.GetErrorString = [](int, const char** text) {
    *text = "an illegal memory access was encountered";
    return kCudaSuccess;
  };
  driver.CtxGetCurrent = [](CudaContext* context) {
    *context = FakeDriver::Now().current;
    return kCudaSuccess;
  };
  driver.CtxPushCurrent = [](CudaContext context) {
    FakeDriver& fake = FakeDriver::Now();
    const auto error = fake.errors.find("push");
    if (error != fake.errors.end()) return error->second;
    fake.current = context;
    fake.calls.emplace_back("push");
    return kCudaSuccess;
  };
  driver.CtxSetCurrent = [](CudaContext context) {
    FakeDriver& fake = FakeDriver::Now();
    const auto error = fake.errors.find("set");
    if (error != fake.errors.end()) return error->second;
    fake.current = context;
    return kCudaSuccess;
  };
  driver.CtxPopCurrent = [](CudaContext* context) {
    FakeDriver& fake = FakeDriver::Now();
    *context = fake.current;
    fake.current = FakeDriver::Other();
    fake.calls.emplace_back("pop");
    return kCudaSuccess;
  };
  driver.ThreadExchangeStreamCaptureMode = [](int* mode) {
    std::swap(*mode, FakeDriver::Now().capture_mode);
    return kCudaSuccess;
  };
  driver.CtxSynchronize = [] { return FakeDriver::Call("synchronize"); };
  driver.CtxGetDevice = [](int* device) {
    *device = 3;
    return FakeDriver::Call("device");
  };
  driver.DeviceGetName = [](char* name, int, int device) {
    std::strcpy(name, device == 3 ? "NVIDIA T" : "another");
    return kCudaSuccess;
  };
  driver.DeviceGetPCIBusId = [](char* address, int, int) {
    std::strcpy(address, "0000:3B:00.0");
    return kCudaSuccess;
  };
  return driver;
}

}  // namespace tfmpi

#endif  // TFMPI_TESTS_CORE_CUDA_FAKE_DRIVER_H_
