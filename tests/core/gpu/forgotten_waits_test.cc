// Every wait of the staged reduction, left out once on purpose: the result must be wrong. So the
// tests of staged_test.cc, which all pass, would notice each of them.

#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "tests/core/device/simulated_gpu.h"
#include "tests/core/gpu/on_gpu.h"
#include "tests/core/support/decorated.h"
#include "tests/core/support/nodes.h"

namespace tfmpi {
namespace {

// What a stream of the ring waits for; kNone: nothing is forgotten.
enum class Forgotten {
  kNone,
  kGradient,    // fetching: the submitter's event
  kSlot,        // fetching: what was in the slot has landed
  kArrival,     // the host: the chunk has come
  kSubmitters,  // the submitter's stream: the result has landed
  kPeers,       // the host: what it reads of the peers' slots has landed
};

// Passes all calls on but those that are forgotten. The ring makes its fetching stream first.
class ForgetfulGpu : public Gpu {
 public:
  // `lands_late`: nothing lands for half a second.
  ForgetfulGpu(SimulatedGpu* real, Forgotten forgotten, bool lands_late)
      : real_(real), forgotten_(forgotten), lands_late_(lands_late) {}
  ~ForgetfulGpu() override {
    if (landing_.joinable()) landing_.join();
  }

  std::string description() const override { return real_->description(); }
  Status MakeCurrent() override { return real_->MakeCurrent(); }
  Status NewStream(GpuStream* stream) override {
    const Status status = real_->NewStream(stream);
    std::lock_guard<std::mutex> lock(mutex_);
    streams_.push_back(*stream);
    if (lands_late_ && streams_.size() == 2) {
      real_->Hold(*stream);
      landing_ = std::thread([this, landing = *stream] {
        std::this_thread::sleep_for(std::chrono::milliseconds(500));
        real_->LetGo(landing);
      });
    }
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
    std::lock_guard<std::mutex> lock(mutex_);
    if (forgotten_ == Forgotten::kPeers && recorded_on_[event] == streams_[1]) *ended = true;
    return status;
  }
  Status Copy(void* to, const void* from, size_t bytes, GpuStream stream) override {
    return real_->Copy(to, from, bytes, stream);
  }
  Status NewPinned(size_t bytes, void** memory) override { return real_->NewPinned(bytes, memory); }
  void DeletePinned(void* memory) override { real_->DeletePinned(memory); }
  Status Register(void* memory, size_t bytes) override { return real_->Register(memory, bytes); }
  void Unregister(void* memory) override { real_->Unregister(memory); }
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
  const bool lands_late_;
  std::thread landing_;
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

constexpr size_t kCount = 8 * kStagedChunkBytes / sizeof(float) + 3;  // more chunks than slots

// No two chunks are alike.
std::vector<char> InputOf(int rank) {
  std::vector<float> values(kCount);
  for (size_t i = 0; i < kCount; ++i) values[i] = static_cast<float>(i % 4093 + 2 * rank);
  const auto* const data = reinterpret_cast<const char*>(values.data());
  return std::vector<char>(data, data + kCount * sizeof(float));
}

std::string Check(const std::vector<char>& result) {
  for (size_t i = 0; i < result.size() / sizeof(float); ++i) {
    float value = 0;
    std::memcpy(&value, result.data() + i * sizeof(float), sizeof(float));
    if (value != static_cast<float>(i % 4093 + 1)) return "element " + std::to_string(i);
  }
  return "";
}

// A broadcast whose root waits for nobody, as MPI's need not: it leaves the bytes for each rank.
class Mailbox {
 public:
  explicit Mailbox(int ranks) : left_(ranks) {}

  std::unique_ptr<Transport> Wrap(std::unique_ptr<Transport> next) {
    return std::make_unique<Posting>(std::move(next), this);
  }

 private:
  class Posting : public Decorated {
   public:
    Posting(std::unique_ptr<Transport> next, Mailbox* box)
        : Decorated(std::move(next)), box_(*box) {}

    Status Broadcast(void* data, size_t bytes, int root, TimePoint) override {
      const auto rank = static_cast<size_t>(topology().rank);
      std::unique_lock<std::mutex> lock(box_.mutex_);
      if (topology().rank == root) {
        const char* const from = static_cast<const char*>(data);
        for (size_t r = 0; r < box_.left_.size(); ++r) {
          if (r != rank) box_.left_[r].emplace_back(from, from + bytes);
        }
        box_.changed_.notify_all();
        return Status();
      }
      box_.changed_.wait(lock, [&] { return !box_.left_[rank].empty(); });
      std::memcpy(data, box_.left_[rank].front().data(), bytes);
      box_.left_[rank].pop_front();
      return Status();
    }

   private:
    Mailbox& box_;
  };

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::deque<std::vector<char>>> left_;  // by rank
};

// Two ranks, on one node or each by itself, whose GPUs forget; on a node rank 0 lands late.
struct Pair {
  Pair(Forgotten forgotten, bool node)
      : ranks(
            2, [](int) { return OptionsOf(DeviceTransport::kStaged); },
            [this, node](std::unique_ptr<Transport> all, int rank) {
              return mailbox.Wrap(node ? nodes.Wrap(std::move(all), rank) : std::move(all));
            }) {
    SimulatedGpu::Options options;
    options.schedule = SimulatedGpu::Schedule::kLate;
    for (int rank = 0; rank < 2; ++rank) {
      gpus.push_back(std::make_unique<SimulatedGpu>(options));
      forgetful.push_back(
          std::make_unique<ForgetfulGpu>(gpus[rank].get(), forgotten, node && rank == 0));
    }
  }

  std::vector<std::unique_ptr<SimulatedGpu>> gpus;
  std::vector<std::unique_ptr<ForgetfulGpu>> forgetful;
  Nodes nodes{1, 2};
  Mailbox mailbox{2};
  Ranks ranks;
};

// A rank's tensor, which is late: it comes when somebody waits for it.
class Tensor {
 public:
  Tensor(Pair* pair, int rank, const std::vector<char>& input)
      : gpu_(*pair->gpus[rank]), bytes_(input.size()) {
    memory_.gpu = pair->forgetful[rank].get();
    EXPECT_TRUE(gpu_.NewStream(&memory_.stream).ok());
    EXPECT_TRUE(gpu_.NewEvent(&memory_.ready).ok());
    EXPECT_TRUE(gpu_.NewMemory(bytes_, &data_).ok());
    EXPECT_TRUE(gpu_.NewPinned(bytes_, &pinned_).ok());
    std::memcpy(pinned_, input.data(), bytes_);
    EXPECT_TRUE(gpu_.Copy(data_, pinned_, bytes_, memory_.stream).ok());
    EXPECT_TRUE(memory_.gpu->Record(memory_.ready, memory_.stream).ok());
  }
  ~Tensor() {
    gpu_.Delete(memory_.stream);
    gpu_.Delete(memory_.ready);
    gpu_.DeletePinned(pinned_);
    gpu_.DeleteMemory(data_);
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;

  Request Average() const {
    const Job job = {"x", DataType::kFloat32, ReduceOp::kAverage, bytes_ / sizeof(float), 1};
    return RequestOnGpu(job, data_, data_, memory_);
  }
  Request Broadcast(const std::string& name, int root) const {
    Request request;
    request.name = name;
    request.signature = {OpKind::kBroadcast,
                         ReduceOp::kAverage,
                         DataType::kFloat32,
                         root,
                         {static_cast<int64_t>(bytes_ / sizeof(float))}};
    request.signature.on_gpu = true;
    request.output = data_;
    request.memory = memory_;
    return request;
  }
  std::vector<char> Result() const { return Read(&gpu_, data_, bytes_, memory_.stream); }

 private:
  SimulatedGpu& gpu_;
  const size_t bytes_;
  GpuMemory memory_;
  void* data_ = nullptr;
  void* pinned_ = nullptr;
};

// "" if the average over two ranks is right on both.
std::string Average(Forgotten forgotten, bool node) {
  Pair pair(forgotten, node);
  std::vector<std::string> wrong(2);
  pair.ranks.Each([&](int rank, Engine& engine) {
    const Tensor tensor(&pair, rank, InputOf(rank));
    EXPECT_EQ(RunOne(engine, tensor.Average()), "");
    wrong[rank] = Check(tensor.Result());
  });
  pair.ranks.JoinAll();
  return wrong[0] + wrong[1];
}

class ForgottenWaitTest : public TimedTest,
                          public ::testing::WithParamInterface<std::tuple<Forgotten, bool>> {};

TEST_P(ForgottenWaitTest, GivesAWrongResult) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer reports the race that this makes, as it should";
#endif
  EXPECT_NE(Average(std::get<0>(GetParam()), std::get<1>(GetParam())), "");
}

INSTANTIATE_TEST_SUITE_P(Each, ForgottenWaitTest,
                         ::testing::Combine(::testing::Values(Forgotten::kGradient,
                                                              Forgotten::kSlot, Forgotten::kArrival,
                                                              Forgotten::kSubmitters),
                                            ::testing::Values(false)));
// On a node kPeers is stricter than kSlot: who takes a slot again has waited for its own copies.
INSTANTIATE_TEST_SUITE_P(
    InANode, ForgottenWaitTest,
    ::testing::Combine(::testing::Values(Forgotten::kGradient, Forgotten::kArrival,
                                         Forgotten::kSubmitters, Forgotten::kPeers),
                       ::testing::Values(true)));

using RememberedWaitTest = TimedTest;

TEST_F(RememberedWaitTest, WithAllOfThemItIsRight) {
  for (const bool node : {false, true}) EXPECT_EQ(Average(Forgotten::kNone, node), "");
}

// A root need not wait for who takes what it broadcasts; its slots may still be read, all the same.
TEST_F(RememberedWaitTest, BroadcastsTakeNoSlotThatAPeerReads) {
  Pair pair(Forgotten::kNone, true);
  pair.ranks.Each([&](int rank, Engine& engine) {
    const std::vector<char> input = InputOf(rank);
    const size_t chunk = kStagedChunkBytes / 2;
    const Tensor tensor(&pair, rank, std::vector<char>(input.begin(), input.begin() + chunk));
    EXPECT_EQ(RunOne(engine, tensor.Average()), "");
    const std::vector<char> ones(2 * PinnedRing::kSlots * kStagedChunkBytes, '\1');
    const Tensor other(&pair, rank, ones);
    EXPECT_EQ(RunOne(engine, other.Broadcast("b", 1)), "");
    EXPECT_EQ(Check(tensor.Result()), "");
    EXPECT_EQ(other.Result(), ones);
  });
  pair.ranks.JoinAll();
}

}  // namespace
}  // namespace tfmpi
