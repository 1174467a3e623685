// Ranks that share a GPU, where something goes wrong. That what they reduce is right:
// staged_test.cc.

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tensorflow_patches/core/gpu/direct/peer_collectives.h"
#include "tensorflow_patches/core/gpu/gpu_reduction.h"
#include "tests/core/gpu/on_gpu.h"

namespace tfmpi {
namespace {

using Call = SimulatedGpu::Call;

class SharedTest : public TimedTest {
 protected:
  void SetUp() override {
    if (TestGpu::IsReal()) GTEST_SKIP() << "a real GPU does not fail on demand";
  }

  EngineOptions Options(DeviceTransport wanted) {
    EngineOptions options = OptionsOf(wanted);
    options.collective_timeout = std::chrono::seconds(2);
    options.log = said_.Log();
    return options;
  }
  // By rank 0, since the last call.
  std::string TakeSaid() { return said_.Take(); }

  // "" or the error of an average of kJob.
  std::string Average(int rank, Engine& engine) {
    OnGpu tensors(gpus_, {kJob}, rank);
    return RunOne(engine,
                  RequestOnGpu(kJob, tensors.inputs[0], tensors.outputs[0], gpus_.Ready(rank)));
  }

  Gpus gpus_{2, Schedule::kRandom, DeviceTransport::kIpc};

 private:
  Said said_;
};

TEST_F(SharedTest, WhatOneRankCannotDoIsStagedOnAll) {
  const struct {
    Call call;
    int number;  // the second is the other rank's, or comes after its first
    const char* said;
  } failures[] = {
      {Call::kNewSum, 1, "cuModuleLoadData"},       {Call::kNewSum, 2, "cuModuleLoadData"},
      {Call::kOpenMemory, 1, "cuIpcOpenMemHandle"}, {Call::kOpenMemory, 2, "cuIpcOpenMemHandle"},
      {Call::kNewStream, 3, "cuStreamCreate"},  // when both have tried it
  };
  for (const auto& failure : failures) {
    gpus_[0].simulated()->Fail(failure.call, failure.number);
    Ranks ranks(2, [this](int) { return Options(DeviceTransport::kAuto); });
    ranks.Each([](int, Engine& engine) { EXPECT_EQ(engine.published().gpus_staged(), -1); });
    RunStep(ranks, gpus_, {kJob});
    ranks.Each([](int, Engine& engine) { EXPECT_EQ(engine.published().gpus_staged(), 1); });
    ranks.JoinAll();
    const std::string said = TakeSaid();
    // Which of the two it was is chance.
    EXPECT_TRUE(said.find(failure.said) != std::string::npos ||
                said.find("rank 1 cannot") != std::string::npos ||
                said.find("another rank") != std::string::npos)
        << said;
    EXPECT_NE(said.find("not on simulated GPU 0, which all ranks share"), std::string::npos)
        << said;
    EXPECT_NE(said.find("gradients are staged through the hosts"), std::string::npos) << said;
  }
}

// Only when all ranks have a gradient do they know each other's GPUs.
TEST_F(SharedTest, WhileARankIsMissingNothingIsChosen) {
  LocalGroup group(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const std::unique_ptr<Transport> transport = group.CreateTransport(rank);
      GpuOptions options = OptionsOf(DeviceTransport::kAuto).gpus;
      int chosen = -1;
      options.chosen = [&](bool staged) { chosen = staged ? 1 : 0; };
      GpuReduction reduction(transport.get(), options);
      OnGpu tensors(gpus_, {kJob}, rank);
      Request request =
          RequestOnGpu(kJob, tensors.inputs[0], tensors.outputs[0], gpus_.Ready(rank));
      for (const int ranks : {1, 2}) {
        const TimePoint deadline = Clock::now() + std::chrono::seconds(20);
        Request* const own = rank < ranks ? &request : nullptr;
        EXPECT_EQ(
            reduction.Allreduce({{request.signature, own}}, ranks, 1.0 / ranks, deadline).message(),
            "");
        EXPECT_EQ(chosen, ranks == 1 ? -1 : 0);
        if (own == nullptr) continue;
        const std::vector<char> result =
            gpus_[rank].Read(tensors.outputs[0], tensors.sizes[0], gpus_.stream(rank));
        EXPECT_EQ(CheckOutput(kJob, AllRanks(ranks), result.data()), "");
      }
      EXPECT_TRUE(reduction.Drain(Clock::now() + std::chrono::seconds(20)).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// A GPU of another host that has the same name: what it opens is its own.
class GpuElsewhere : public SimulatedGpu {
 public:
  Status OpenMemory(const GpuHandle&, void** memory) override {
    return NewMemory(PeerCollectives::kSlots * kStagedChunkBytes, memory);
  }
  void CloseMemory(const GpuHandle&, void* memory) override { DeleteMemory(memory); }
};

TEST_F(SharedTest, EachRankHearsWhatFailedWhere) {
  const char* const apart = "the ranks do not see the same memory on simulated GPU 0";
  const struct {
    Call call;
    int number;  // of rank 1
    std::string said[2];
  } failures[] = {
      {Call::kNewSum, 1, {"rank 1 cannot share its memory", "cuModuleLoadData"}},
      {Call::kNewMemory, 2, {"another rank cannot use the ranks' shared memory", "cuMemAlloc"}},
      {Call::kNewSum, 0, {apart, apart}},
  };
  for (const auto& failure : failures) {
    LocalGroup group(2);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        GpuElsewhere gpu;
        const std::unique_ptr<Transport> transport = group.CreateTransport(rank);
        if (rank == 1) gpu.Fail(failure.call, failure.number);
        std::unique_ptr<DeviceCollectives> made;
        const Status status = PeerCollectives::Make(&gpu, transport.get(), kStagedChunkBytes,
                                                    Clock::now() + std::chrono::seconds(20), &made);
        EXPECT_NE(status.message().find(failure.said[rank]), std::string::npos) << status.message();
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

TEST_F(SharedTest, ASumThatDoesNotEndEndsTheJob) {
  Ranks ranks(2, [this](int) { return Options(DeviceTransport::kIpc); });
  RunStep(ranks, gpus_, {kJob});
  SimulatedGpu& gpu = *gpus_[0].simulated();
  std::vector<std::unique_ptr<OnGpu>> tensors;
  for (int rank = 0; rank < 2; ++rank) {
    tensors.push_back(std::make_unique<OnGpu>(gpus_, std::vector<Job>{kJob}, rank));
    gpu.Finish(gpus_.stream(rank));
  }
  gpu.HoldWork(3);  // behind both ranks' copies to where the other one reads them
  ranks.Each([&](int rank, Engine& engine) {
    RunOne(engine, RequestOnGpu(kJob, tensors[rank]->inputs[0], tensors[rank]->outputs[0],
                                gpus_.Ready(rank)));
    const TimePoint limit = Clock::now() + std::chrono::seconds(20);
    while (engine.failure().ok() && Clock::now() < limit) {
      Clock::Sleep(std::chrono::milliseconds(1));
    }
  });
  const std::string said = ranks[0].failure().message() + ranks[1].failure().message();
  EXPECT_NE(said.find("a reduction between GPUs (one GPU that all ranks share) has not ended "
                      "on simulated GPU 0"),
            std::string::npos)
      << said;
  gpu.LetAllGo();
  gpu.ExpectLeft(2);
}

TEST_F(SharedTest, WhoAsksForItHearsWhyNot) {
  gpus_[0].simulated()->Fail(Call::kOpenMemory, 1);
  Ranks ranks(2, [this](int) { return Options(DeviceTransport::kIpc); });
  std::vector<std::string> said(2);
  ranks.Each([&](int rank, Engine& engine) { said[rank] = Average(rank, engine); });
  for (const std::string& one : said) {
    EXPECT_NE(one.find("not on simulated GPU 0, which all ranks share"), std::string::npos) << one;
  }
  EXPECT_NE((said[0] + said[1]).find("cuIpcOpenMemHandle"), std::string::npos) << said[0];
}

TEST_F(SharedTest, AGpuThatStandsStillEndsTheJob) {
  Ranks ranks(2, [this](int) { return Options(DeviceTransport::kIpc); });
  RunStep(ranks, gpus_, {kJob});
  EXPECT_EQ(ranks[0].published().gpus_staged(), 0);
  std::vector<std::string> said(2);
  ranks.Each([&](int rank, Engine& engine) {
    if (rank == 1) gpus_[0].simulated()->Hold(gpus_.stream(1));
    said[rank] = Average(rank, engine);
  });
  EXPECT_NE(said[0], "");
  EXPECT_NE(said[1].find("simulated GPU 0 is busy with earlier work"), std::string::npos)
      << said[1];
  gpus_[0].simulated()->LetGo(gpus_.stream(1));
  gpus_[0].simulated()->ExpectLeft(2);
}

// Nothing of the one that is left waits for it: neither its thread nor its stream.
TEST_F(SharedTest, ARankThatIsLostEndsTheJob) {
  Ranks ranks(2, [this](int) { return Options(DeviceTransport::kIpc); });
  RunStep(ranks, gpus_, {kJob});
  ranks.Destroy(1);
  EXPECT_NE(Average(0, ranks[0]), "");
  gpus_[0].simulated()->Finish(gpus_.stream(0));
  gpus_[0].simulated()->ExpectLeft(2);  // of the one that was lost, too: it is another's to free
}

}  // namespace
}  // namespace tfmpi
