// Callers that do the communication themselves, in the communication thread's place.

#include <atomic>
#include <cstdio>
#include <random>

#include "gtest/gtest.h"
#include "tests/core/support/job.h"
#include "tests/core/support/nodes.h"
#include "tests/core/support/ranks.h"

namespace tfmpi {
namespace {

using std::chrono::milliseconds;

constexpr int kSteps = TFMPI_SANITIZED ? 100 : 1000;

// Shared with the callback, which the communication thread may run later.
struct Ended {
  std::atomic<bool> over{false};
  Status status;  // written before `over`
  std::thread::id thread;
};

// Works on it meanwhile.
std::shared_ptr<Ended> SubmitAndWait(Engine& engine, Request request) {
  auto ended = std::make_shared<Ended>();
  request.done = [ended, &engine](const Status& status) {
    EXPECT_TRUE(engine.OnCommunicationThread());
    ended->status = status;
    ended->thread = std::this_thread::get_id();
    ended->over = true;
  };
  {
    InlineProgress progress(&engine);
    engine.Submit(std::move(request));
    progress.Until([&] { return ended->over.load(); });
  }
  EXPECT_FALSE(engine.OnCommunicationThread());
  while (!ended->over) std::this_thread::yield();  // the watchdog ends a wait that is too long
  return ended;
}

enum class Over { kLocal, kNode };

class InlineProgressTest : public TimedTest, public ::testing::WithParamInterface<Over> {
 protected:
  std::unique_ptr<Ranks> MakeRanks(int size) {
    if (GetParam() == Over::kLocal) return std::make_unique<Ranks>(size);
    nodes_ = std::make_unique<Nodes>(1, size);
    return std::make_unique<Ranks>(size, TestOptions(), nodes_->Decorator());
  }

 private:
  std::unique_ptr<Nodes> nodes_;
};
INSTANTIATE_TEST_SUITE_P(Transports, InlineProgressTest,
                         ::testing::Values(Over::kLocal, Over::kNode), [](const auto& test) {
                           return test.param == Over::kLocal ? "Local" : "Node";
                         });

// Of one rank nothing is waited for, so all of it happens on the caller's thread.
TEST_P(InlineProgressTest, CallbacksRunOnTheCallersThread) {
  const std::unique_ptr<Ranks> ranks = MakeRanks(1);
  std::this_thread::sleep_for(milliseconds(50));  // the communication thread sleeps
  int carried = 0;
  for (int step = 0; step < 20; ++step) {
    const Job job = {"w", DataType::kFloat32, ReduceOp::kAverage, 5, step};
    std::vector<char> data = MakeInput(job, 0);
    const auto ended = SubmitAndWait((*ranks)[0], MakeRequest(job, data.data(), data.data()));
    EXPECT_TRUE(ended->status.ok());
    EXPECT_EQ(CheckOutput(job, {0}, data.data()), "");
    carried += ended->thread == std::this_thread::get_id();
  }
  EXPECT_GT(carried, 0) << "the communication thread did it all";
  ranks->JoinAll();
}

// Every rank by itself decides who works: sizes of both kinds of reduction inside a node, and
// pauses that are longer than a caller's patience.
TEST_P(InlineProgressTest, RanksMixCallersAndCommunicationThreads) {
  constexpr int kRanks = 2;
  const std::unique_ptr<Ranks> ranks = MakeRanks(kRanks);
  std::atomic<int> carried{0};
  ranks->Each([&](int rank, Engine& engine) {
    std::mt19937 random(10 + rank);
    for (int step = 0; step < kSteps; ++step) {
      const size_t count = step % 7 == 0 ? 100'000 : 20;
      const Job job = {"w" + std::to_string(step % 7), DataType::kFloat32, ReduceOp::kAverage,
                       count, step};
      std::vector<char> data = MakeInput(job, rank);
      Request request = MakeRequest(job, data.data(), data.data());
      if (random() % 8 == 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 2 == 0 ? 200 : 1500));
      }
      if (random() % 4 == 0) {
        Ending ending = Submit(engine, std::move(request));
        ASSERT_TRUE(Await(ending).ok());
      } else {
        const auto ended = SubmitAndWait(engine, std::move(request));
        ASSERT_TRUE(ended->status.ok()) << ended->status.message();
        carried += ended->thread == std::this_thread::get_id();
      }
      ASSERT_EQ(CheckOutput(job, AllRanks(kRanks), data.data()), "") << "step " << step;
    }
  });
  std::printf("%d of %d steps were carried by callers\n", carried.load(), kRanks * kSteps);
  EXPECT_GT(carried, 0);
  ranks->JoinAll();
}

// Two threads of a rank want the progress lock, and a third submits without it: a callback of one's
// may run while another holds it.
TEST_P(InlineProgressTest, OneThreadAtATimeHoldsTheProgressLock) {
  constexpr int kRanks = 2;
  const std::unique_ptr<Ranks> ranks = MakeRanks(kRanks);
  ranks->Each([&](int rank, Engine& engine) {
    const auto train = [&](int model) {
      for (int step = 0; step < kSteps / 4; ++step) {
        const Job job = {"m" + std::to_string(model), DataType::kFloat32, ReduceOp::kAverage, 40,
                         step + model};
        std::vector<char> data = MakeInput(job, rank);
        Request request = MakeRequest(job, data.data(), data.data());
        if (model == 2) {
          Ending ending = Submit(engine, std::move(request));
          ASSERT_TRUE(Await(ending).ok());
        } else {
          ASSERT_TRUE(SubmitAndWait(engine, std::move(request))->status.ok());
        }
        ASSERT_EQ(CheckOutput(job, AllRanks(kRanks), data.data()), "") << "step " << step;
      }
    };
    std::thread second([&] { train(1); });
    std::thread third([&] { train(2); });
    train(0);
    second.join();
    third.join();
  });
  ranks->JoinAll();
}

// A peer that comes when the caller's patience is over finds the communication thread listening.
TEST_P(InlineProgressTest, WhoRunsOutOfPatienceIsAnsweredAtOnce) {
  constexpr int kRounds = 20;
  const std::unique_ptr<Ranks> ranks = MakeRanks(2);
  Clock::duration slowest{};
  ranks->Each([&](int rank, Engine& engine) {
    for (int round = 0; round < kRounds; ++round) {
      const int late = round % 2;
      const Job job = {"w", DataType::kFloat32, ReduceOp::kSum, 3, round};
      std::vector<char> data = MakeInput(job, rank);
      if (rank == late) std::this_thread::sleep_for(milliseconds(5));
      const TimePoint start = Clock::now();
      const auto ended = SubmitAndWait(engine, MakeRequest(job, data.data(), data.data()));
      EXPECT_TRUE(ended->status.ok());
      if (rank == 0 && rank == late) slowest = std::max(slowest, Clock::now() - start);
      EXPECT_EQ(CheckOutput(job, AllRanks(2), data.data()), "");
    }
  });
  // Whoever is not notified for sleeps for 20 ms.
  EXPECT_LT(slowest, milliseconds(TFMPI_SANITIZED ? 10'000 : 15));
  ranks->JoinAll();
}

// A request that cannot end while its rank's caller works: the others leave.
TEST_P(InlineProgressTest, AFailureEndsTheWait) {
  const std::unique_ptr<Ranks> ranks = MakeRanks(2);
  std::thread leaver([&] {
    std::this_thread::sleep_for(milliseconds(20));
    (*ranks)[1].Leave("the test leaves", std::chrono::seconds(5));
  });
  const Job job = {"w", DataType::kFloat32, ReduceOp::kAverage, 3, 0};
  for (int step = 0; step < 3; ++step) {
    std::vector<char> data = MakeInput(job, 0);
    const auto ended = SubmitAndWait((*ranks)[0], MakeRequest(job, data.data(), data.data()));
    EXPECT_FALSE(ended->status.ok());
  }
  leaver.join();
}

}  // namespace
}  // namespace tfmpi
