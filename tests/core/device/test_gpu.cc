#include "tests/core/device/test_gpu.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tensorflow_patches/core/base/clock.h"
#include "tensorflow_patches/core/device/driver.h"

namespace tfmpi {
namespace {

void Need(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "the GPU of a test: %s\n", status.message().c_str());
  std::abort();
}

}  // namespace

bool TestGpu::IsReal() {
  const char* const wanted = std::getenv("TFMPI_TEST_GPU");
  return wanted != nullptr && std::string(wanted) == "1";
}

TestGpu::TestGpu(const SimulatedGpu::Options& options) {
  if (IsReal()) {
    GpuStream stream = nullptr;
    Need(OpenGpu(0, &gpu_, &stream));
    streams_.push_back(stream);
  } else {
    owned_ = std::make_unique<SimulatedGpu>(options);
    simulated_ = owned_.get();
    gpu_ = simulated_;
  }
}

TestGpu::TestGpu(TestGpu* first) : simulated_(first->simulated_), gpu_(first->gpu_) {}

TestGpu::~TestGpu() {
  for (void* memory : pinned_) gpu_->DeletePinned(memory);
  for (void* memory : memory_) gpu_->DeleteMemory(memory);
  for (GpuEvent event : events_) gpu_->Delete(event);
  for (GpuStream stream : streams_) gpu_->Delete(stream);
}

GpuStream TestGpu::NewStream() {
  GpuStream stream = nullptr;
  Need(gpu_->NewStream(&stream));
  streams_.push_back(stream);
  return stream;
}

GpuEvent TestGpu::NewEvent() {
  GpuEvent event = nullptr;
  Need(gpu_->NewEvent(&event));
  events_.push_back(event);
  return event;
}

void* TestGpu::NewMemory(size_t bytes) {
  void* memory = nullptr;
  Need(gpu_->NewMemory(bytes, &memory));
  memory_.push_back(memory);
  return memory;
}

void* TestGpu::NewPinned(size_t bytes) {
  void* memory = nullptr;
  Need(gpu_->NewPinned(bytes, &memory));
  pinned_.push_back(memory);
  return memory;
}

void TestGpu::Write(void* device, const std::vector<char>& data, GpuStream stream) {
  void* const pinned = NewPinned(data.size());
  if (!data.empty()) std::memcpy(pinned, data.data(), data.size());
  Need(gpu_->Copy(device, pinned, data.size(), stream));
}

std::vector<char> TestGpu::Read(const void* device, size_t bytes, GpuStream stream) {
  char* const pinned = static_cast<char*>(NewPinned(bytes));
  const GpuEvent event = NewEvent();
  Need(gpu_->Copy(pinned, device, bytes, stream));
  Need(gpu_->Record(event, stream));
  Await(event);
  return std::vector<char>(pinned, pinned + bytes);
}

void TestGpu::Await(GpuEvent event) {
  for (bool ended = false; !ended;) {
    Need(gpu_->Query(event, &ended));
    if (!ended) Clock::Sleep(std::chrono::microseconds(20));
  }
}

}  // namespace tfmpi
