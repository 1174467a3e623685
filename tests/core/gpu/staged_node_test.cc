// Staging in memory of a node, where something goes wrong. That its results are right:
// staged_test.cc.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/core/gpu/on_gpu.h"
#include "tests/core/support/decorated.h"
#include "tests/core/support/nodes.h"

namespace tfmpi {
namespace {

using Call = SimulatedGpu::Call;

// In several chunks.
const Job kLargeJob = {"x", DataType::kFloat32, ReduceOp::kAverage, kStagedChunkBytes / 2 + 5, 1};

// Counts what is reduced from buffers of each rank's own.
class Counting : public Decorated {
 public:
  Counting(std::unique_ptr<Transport> next, std::atomic<size_t>* largest)
      : Decorated(std::move(next)), largest_(largest) {}

  Status Allreduce(const void* in, void* out, const Reduction& reduction,
                   TimePoint deadline) override {
    if (reduction.count > *largest_) *largest_ = reduction.count;
    return Decorated::Allreduce(in, out, reduction, deadline);
  }

 private:
  std::atomic<size_t>* const largest_;
};

class StagedNodeTest : public TimedTest {
 protected:
  void SetUp() override {
    if (TestGpu::IsReal()) GTEST_SKIP() << "a real GPU does not fail on demand";
  }

  EngineOptions Options() {
    EngineOptions options = OptionsOf(DeviceTransport::kStaged);
    options.collective_timeout = std::chrono::seconds(2);
    options.log = said_.Log();
    return options;
  }

  Ranks::Decorate Decorator() {
    return [this](std::unique_ptr<Transport> all, int rank) {
      return std::make_unique<Counting>(nodes_.Wrap(std::move(all), rank), &largest_);
    };
  }

  // Runs a step on all ranks, and says what rank 0 said.
  std::string Step() {
    Ranks ranks(
        4, [this](int) { return Options(); }, Decorator());
    RunStep(ranks, gpus_, {kLargeJob});
    ranks.JoinAll();
    return said_.Take();
  }

  // Since the last call. More than ranks tell each other, as one float.
  bool ReducesInPlace() { return largest_.exchange(0) <= 1; }

  Gpus gpus_{4, Schedule::kRandom, DeviceTransport::kStaged};
  Nodes nodes_{2, 2};

 private:
  std::atomic<size_t> largest_{0};
  Said said_;
};

TEST_F(StagedNodeTest, NothingIsReducedOutsideOfIt) {
  EXPECT_EQ(Step(), "staged through the host: TF_MPI_GPU_TRANSPORT=staged");
  EXPECT_TRUE(ReducesInPlace());
}

TEST_F(StagedNodeTest, WithoutRoomOnOneNodeAllRanksCopyTwice) {
  nodes_.FailBuffersOf(3);
  const std::string said = Step();
  EXPECT_NE(said.find("; each chunk is copied twice there"), std::string::npos) << said;
  EXPECT_NE(said.find("another rank cannot"), std::string::npos) << said;
  EXPECT_FALSE(ReducesInPlace());
}

// What is made anew after that is whole. RunStep itself makes two blocks of memory and an event.
TEST_F(StagedNodeTest, AGpuThatCannotPrepareItIsHeardOfByAll) {
  const struct {
    Call call;
    int number;
    const char* said;
  } failures[] = {
      {Call::kRegister, 1, "cuMemHostRegister of"}, {Call::kNewPinned, 3, "cuMemHostAlloc of"},
      {Call::kNewStream, 1, "cuStreamCreate"},      {Call::kNewStream, 2, "cuStreamCreate"},
      {Call::kNewEvent, 3, "cuEventCreate"},
  };
  for (const auto& failure : failures) {
    gpus_[0].simulated()->Fail(failure.call, failure.number);
    const std::string said = Step();
    EXPECT_NE(said.find("; each chunk is copied twice there"), std::string::npos) << said;
    EXPECT_NE(said.find(failure.said), std::string::npos) << said;
    EXPECT_FALSE(ReducesInPlace());
  }
}

// Before the first reduction a broadcast has gone through memory of each rank's own; then that is
// given back while its copies may still be under way.
TEST_F(StagedNodeTest, AfterABroadcast) {
  Ranks ranks(
      4, [this](int) { return Options(); }, Decorator());
  ranks.Each([&](int rank, Engine& engine) {
    const Job job = {"b", DataType::kFloat32, ReduceOp::kSum, 3 * kStagedChunkBytes / 4, 4};
    const std::vector<char> own = MakeInput(job, rank);
    void* const data = gpus_[rank].NewMemory(own.size());
    gpus_[rank].Write(data, own, gpus_.stream(rank));
    for (int step = 0; step < 2; ++step) {
      Request request;
      request.name = "b" + std::to_string(step);
      request.signature = {
          OpKind::kBroadcast, ReduceOp::kAverage, job.type, 1, {static_cast<int64_t>(job.count)}};
      request.signature.on_gpu = true;
      request.output = data;
      request.memory = gpus_.Ready(rank);
      EXPECT_EQ(RunOne(engine, std::move(request)), "");
      OnGpu tensors(gpus_, {kLargeJob}, rank);
      EXPECT_EQ(RunOne(engine, RequestOnGpu(kLargeJob, tensors.inputs[0], tensors.outputs[0],
                                            gpus_.Ready(rank))),
                "");
      const std::vector<char> result =
          gpus_[rank].Read(tensors.outputs[0], tensors.sizes[0], gpus_.stream(rank));
      EXPECT_EQ(CheckOutput(kLargeJob, AllRanks(4), result.data()), "");
    }
    EXPECT_EQ(gpus_[rank].Read(data, own.size(), gpus_.stream(rank)), MakeInput(job, 1));
  });
  ranks.JoinAll();
  EXPECT_TRUE(ReducesInPlace());
}

// The first step is well; in the second a rank's GPU stands still or fails.
TEST_F(StagedNodeTest, AGpuThatFailsEndsTheJobOnAllRanks) {
  for (const bool stands_still : {true, false}) {
    Gpus gpus(4, Schedule::kRandom, DeviceTransport::kStaged);
    Nodes nodes(2, 2);
    Ranks ranks(
        4, [this](int) { return Options(); }, nodes.Decorator());
    RunStep(ranks, gpus, {kLargeJob});
    std::vector<std::string> said(4);
    ranks.Each([&](int rank, Engine& engine) {
      OnGpu tensors(gpus, {kLargeJob}, rank);
      GpuMemory memory = gpus.Ready(rank);
      if (rank == 1 && !stands_still) gpus[1].simulated()->FailWork(1);
      if (rank == 1 && stands_still) {
        gpus[1].simulated()->Hold(gpus.stream(1));
        memory = gpus.Ready(rank);
      }
      said[rank] =
          RunOne(engine, RequestOnGpu(kLargeJob, tensors.inputs[0], tensors.outputs[0], memory));
      if (rank == 1 && stands_still) gpus[1].simulated()->LetGo(gpus.stream(1));
    });
    for (const std::string& one : said) EXPECT_NE(one, "");
    EXPECT_NE(said[1].find("simulated GPU 0"), std::string::npos) << said[1];
    if (!stands_still) gpus[1].simulated()->TakeComplaints();
  }
}

}  // namespace
}  // namespace tfmpi
