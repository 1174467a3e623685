// Every wait of the staged reduction, left out once on purpose: the result must be wrong. So the
// tests of staged_test.cc, which all pass, would notice each of them.

#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/core/device/simulated_gpu.h"
#include "tests/core/gpu/on_gpu.h"

namespace tfmpi {
namespace {

// What a stream of the ring waits for; kNone: nothing is forgotten.
enum class Forgotten {
  kNone,
  kGradient,    // fetching: the submitter's event
  kSlot,        // fetching: what was in the slot has landed
  kArrival,     // the host: the chunk has come
  kSubmitters,  // the submitter's stream: the result has landed
};

// Passes all calls on but those that are forgotten. The ring makes its fetching stream first.
class ForgetfulGpu : public Gpu {
 public:
  ForgetfulGpu(SimulatedGpu* real, Forgotten forgotten) : real_(real), forgotten_(forgotten) {}

  std::string description() const override { return real_->description(); }
  Status NewStream(GpuStream* stream) override {
    const Status status = real_->NewStream(stream);
    std::lock_guard<std::mutex> lock(mutex_);
    streams_.push_back(*stream);
    return status;
  }
  Status NewEvent(GpuEvent* event) override { return real_->NewEvent(event); }
  void Delete(GpuStream stream) override { real_->Delete(stream); }
  void Delete(GpuEvent event) override { real_->Delete(event); }
  Status Record(GpuEvent event, GpuStream stream) override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      recorded_on_[event] = stream;
    }
    return real_->Record(event, stream);
  }
  Status Wait(GpuStream stream, GpuEvent event) override {
    return Forgets(stream, event) ? Status() : real_->Wait(stream, event);
  }
  Status Query(GpuEvent event, bool* ended) override {
    const Status status = real_->Query(event, ended);
    if (forgotten_ == Forgotten::kArrival) *ended = true;
    return status;
  }
  Status Copy(void* to, const void* from, size_t bytes, GpuStream stream) override {
    return real_->Copy(to, from, bytes, stream);
  }
  Status NewPinned(size_t bytes, void** memory) override { return real_->NewPinned(bytes, memory); }
  void DeletePinned(void* memory) override { real_->DeletePinned(memory); }
  Status NewMemory(size_t bytes, void** memory) override { return real_->NewMemory(bytes, memory); }
  void DeleteMemory(void* memory) override { real_->DeleteMemory(memory); }
  Status NewSharedMemory(size_t bytes, void** memory, GpuHandle* handle) override {
    return real_->NewSharedMemory(bytes, memory, handle);
  }
  Status OpenMemory(const GpuHandle& handle, void** memory) override {
    return real_->OpenMemory(handle, memory);
  }
  void CloseMemory(const GpuHandle& handle, void* memory) override {
    real_->CloseMemory(handle, memory);
  }
  Status NewSum(size_t sources, std::unique_ptr<GpuSum>* sum) override {
    return real_->NewSum(sources, sum);
  }

 private:
  bool Forgets(GpuStream stream, GpuEvent event) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (streams_.size() < 2) return false;
    const GpuStream fetching = streams_[0], landing = streams_[1];
    const bool own = recorded_on_.count(event) == 0 || recorded_on_[event] == fetching ||
                     recorded_on_[event] == landing;
    switch (forgotten_) {
      case Forgotten::kGradient:
        return stream == fetching && !own;
      case Forgotten::kSlot:
        return stream == fetching && own;
      case Forgotten::kSubmitters:
        return stream != fetching && stream != landing;
      default:
        return false;
    }
  }

  SimulatedGpu* const real_;
  const Forgotten forgotten_;
  std::mutex mutex_;
  std::vector<GpuStream> streams_;
  std::map<GpuEvent, GpuStream> recorded_on_;
};

std::vector<char> Read(SimulatedGpu* gpu, const void* from, size_t bytes, GpuStream stream) {
  void* pinned = nullptr;
  EXPECT_TRUE(gpu->NewPinned(bytes, &pinned).ok());
  EXPECT_TRUE(gpu->Copy(pinned, from, bytes, stream).ok());
  gpu->Finish(stream);
  const auto* const data = static_cast<const char*>(pinned);
  std::vector<char> result(data, data + bytes);
  gpu->DeletePinned(pinned);
  return result;
}

constexpr size_t kCount = 5 * kGpuChunkBytes / sizeof(float) + 3;  // more chunks than slots

// No two chunks are alike.
std::vector<char> InputOf(int rank) {
  std::vector<float> values(kCount);
  for (size_t i = 0; i < kCount; ++i) values[i] = static_cast<float>(i % 4093 + 2 * rank);
  const auto* const data = reinterpret_cast<const char*>(values.data());
  return std::vector<char>(data, data + kCount * sizeof(float));
}

std::string Check(const std::vector<char>& result) {
  for (size_t i = 0; i < kCount; ++i) {
    float value = 0;
    std::memcpy(&value, result.data() + i * sizeof(float), sizeof(float));
    if (value != static_cast<float>(i % 4093 + 1)) return "element " + std::to_string(i);
  }
  return "";
}

// "" if the average over two ranks is right on both.
std::string Average(Forgotten forgotten) {
  SimulatedGpu::Options options;
  options.schedule = SimulatedGpu::Schedule::kLate;
  std::vector<std::unique_ptr<SimulatedGpu>> gpus;
  std::vector<std::unique_ptr<ForgetfulGpu>> forgetful;
  for (int rank = 0; rank < 2; ++rank) {
    gpus.push_back(std::make_unique<SimulatedGpu>(options));
    forgetful.push_back(std::make_unique<ForgetfulGpu>(gpus[rank].get(), forgotten));
  }
  Ranks ranks(2, [](int) { return OptionsOf(DeviceTransport::kStaged); });
  const Job job = {"x", DataType::kFloat32, ReduceOp::kAverage, kCount, 1};
  std::vector<std::string> wrong(2);
  ranks.Each([&](int rank, Engine& engine) {
    SimulatedGpu& gpu = *gpus[rank];
    const std::vector<char> input = InputOf(rank);
    GpuMemory memory;
    memory.gpu = forgetful[rank].get();
    void *data = nullptr, *pinned = nullptr;
    EXPECT_TRUE(gpu.NewStream(&memory.stream).ok());
    EXPECT_TRUE(gpu.NewEvent(&memory.ready).ok());
    EXPECT_TRUE(gpu.NewMemory(input.size(), &data).ok());
    EXPECT_TRUE(gpu.NewPinned(input.size(), &pinned).ok());
    std::memcpy(pinned, input.data(), input.size());
    // The gradient is late: it comes when somebody waits for it.
    EXPECT_TRUE(gpu.Copy(data, pinned, input.size(), memory.stream).ok());
    EXPECT_TRUE(forgetful[rank]->Record(memory.ready, memory.stream).ok());
    Request request = MakeRequest(job, data, data);
    request.signature.on_gpu = true;
    request.memory = memory;
    std::vector<Ending> endings;
    endings.push_back(Submit(engine, std::move(request)));
    EXPECT_EQ(AwaitAll(endings), "");
    const std::vector<char> result = Read(&gpu, data, input.size(), memory.stream);
    wrong[rank] = Check(result);
    gpu.Delete(memory.stream);
    gpu.Delete(memory.ready);
    gpu.DeletePinned(pinned);
    gpu.DeleteMemory(data);
  });
  ranks.JoinAll();
  return wrong[0] + wrong[1];
}

class ForgottenWaitTest : public TimedTest, public ::testing::WithParamInterface<Forgotten> {};

TEST_P(ForgottenWaitTest, GivesAWrongResult) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer reports the race that this makes, as it should";
#endif
  EXPECT_NE(Average(GetParam()), "");
}

INSTANTIATE_TEST_SUITE_P(Each, ForgottenWaitTest,
                         ::testing::Values(Forgotten::kGradient, Forgotten::kSlot,
                                           Forgotten::kArrival, Forgotten::kSubmitters));

using RememberedWaitTest = TimedTest;

TEST_F(RememberedWaitTest, WithAllOfThemItIsRight) { EXPECT_EQ(Average(Forgotten::kNone), ""); }

}  // namespace
}  // namespace tfmpi
