// Ranks that share a GPU, where something goes wrong. That what they reduce is right:
// staged_test.cc.

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/core/gpu/on_gpu.h"

namespace tfmpi {
namespace {

using Call = SimulatedGpu::Call;

const Job kJob = {"x", DataType::kFloat32, ReduceOp::kAverage, 300, 1};

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
