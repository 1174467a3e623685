// A thousand steps in random order, and what the engine costs while it waits.

#include <time.h>

#include <algorithm>
#include <random>

#include "gtest/gtest.h"
#include "tests/core/support/elements.h"
#include "tests/core/support/job.h"
#include "tests/core/support/ranks.h"

namespace tfmpi {
namespace {

using StressTest = TimedTest;

// Sanitizers slow each step by a factor of ten or more; the races they look for need fewer steps.
constexpr int kSteps = TFMPI_SANITIZED ? 150 : 1000;
constexpr int kNames = 50;

// The variables of a model with two of everything that matters.
std::vector<Job> Variables() {
  std::vector<Job> jobs;
  for (int i = 0; i < kNames; ++i) {
    const DataType type = i % 10 == 9 ? DataType::kFloat16 : DataType::kFloat32;
    const size_t count = i % 25 == 24 ? 2000 : 1 + static_cast<size_t>(i) * 3;
    jobs.push_back({"variable" + std::to_string(i), type, ReduceOp::kAverage, count, 0});
  }
  return jobs;
}

TEST_F(StressTest, AThousandStepsInRandomOrder) {
  constexpr int kRanks = 4;
  Ranks ranks(kRanks);
  ranks.Each([&](int rank, Engine& engine) {
    std::vector<Job> jobs = Variables();
    std::mt19937 random(1000 + rank);
    std::vector<size_t> order(kNames);
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::vector<std::vector<char>> data(kNames);
    for (int step = 0; step < kSteps; ++step) {
      std::shuffle(order.begin(), order.end(), random);
      std::vector<Ending> endings;
      for (size_t i : order) {
        jobs[i].seed = step;
        data[i] = MakeInput(jobs[i], rank);
        endings.push_back(Submit(engine, MakeRequest(jobs[i], data[i].data(), data[i].data())));
      }
      ASSERT_EQ(AwaitAll(endings), "");
      for (int i = 0; i < kNames; ++i) {
        ASSERT_EQ(CheckOutput(jobs[i], AllRanks(kRanks), data[i].data()), "") << "step " << step;
      }
    }
    EXPECT_EQ(engine.stats().completed, static_cast<uint64_t>(kSteps) * kNames);
  });
  ranks.JoinAll();
}

// Several threads per rank train their own models at the same time, like two sessions.
TEST_F(StressTest, TwoModelsAtOnce) {
  constexpr int kRanks = 3;
  Ranks ranks(kRanks);
  ranks.Each([&](int rank, Engine& engine) {
    const auto train = [&](int model) {
      std::mt19937 random(rank * 2 + model);
      for (int step = 0; step < kSteps / 10; ++step) {
        std::vector<Job> jobs;
        std::vector<std::vector<char>> data;
        for (int i = 0; i < 12; ++i) {
          jobs.push_back({"m" + std::to_string(model) + "/" + std::to_string(i), DataType::kFloat32,
                          ReduceOp::kAverage, 40, step + model});
        }
        std::shuffle(jobs.begin(), jobs.end(), random);
        for (const Job& job : jobs) data.push_back(MakeInput(job, rank));
        std::vector<Ending> endings;
        for (size_t i = 0; i < jobs.size(); ++i) {
          endings.push_back(Submit(engine, MakeRequest(jobs[i], data[i].data(), data[i].data())));
        }
        ASSERT_EQ(AwaitAll(endings), "");
        for (size_t i = 0; i < jobs.size(); ++i) {
          ASSERT_EQ(CheckOutput(jobs[i], AllRanks(kRanks), data[i].data()), "");
        }
      }
    };
    std::thread other([&] { train(1); });
    train(0);
    other.join();
  });
  ranks.JoinAll();
}

// Sanitizers instrument every wake-up, so their cost is meaningless.
#if !TFMPI_SANITIZED
double CpuSeconds() {
  timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double CpuSecondsInOneSecond() {
  const double before = CpuSeconds();
  std::this_thread::sleep_for(std::chrono::seconds(1));
  return CpuSeconds() - before;
}

TEST_F(StressTest, AnIdleEngineCostsNextToNothing) {
  constexpr int kRanks = 4;
  Ranks ranks(kRanks);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const double idle = CpuSecondsInOneSecond() / kRanks;
  std::printf("idle: %.2f %% of a core per rank\n", idle * 100);
  EXPECT_LT(idle, 0.02);
  ranks.JoinAll();
}

// Between its own gradients and those of a slower rank a model computes: the engine must leave it
// the core.
TEST_F(StressTest, WaitingForASlowRankLeavesTheCore) {
  constexpr int kRanks = 4;
  Ranks ranks(kRanks);
  std::vector<float> values(kRanks);
  std::vector<Ending> endings;
  const auto submit = [&](int rank) {
    const Job job = {"w", DataType::kFloat32, ReduceOp::kAverage, 1, 0};
    endings.push_back(Submit(ranks[rank], MakeRequest(job, &values[rank], &values[rank])));
  };
  for (int rank = 0; rank + 1 < kRanks; ++rank) submit(rank);
  const double waiting = CpuSecondsInOneSecond() / (kRanks - 1);
  std::printf("waiting for a peer: %.2f %% of a core per rank\n", waiting * 100);
  EXPECT_LT(waiting, 0.15);
  submit(kRanks - 1);
  EXPECT_EQ(AwaitAll(endings), "");
  ranks.JoinAll();
}
#endif

}  // namespace
}  // namespace tfmpi
