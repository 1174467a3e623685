// Threads that submit a request and wait for its end, like a collective of tf.mpi, and what the
// communication thread does meanwhile. Over both kinds of shared memory.

#include <random>

#include "gtest/gtest.h"
#include "tests/core/support/job.h"
#include "tests/core/support/nodes.h"
#include "tests/core/support/ranks.h"

namespace tfmpi {
namespace {

using std::chrono::milliseconds;

constexpr int kWaitSteps = TFMPI_SANITIZED ? 100 : 1000;

// Recorded by the request's callback.
struct Ended {
  Status status;
  std::thread::id thread;
};

Ended SubmitAndWait(Engine& engine, Request request) {
  auto promise = std::make_shared<std::promise<Ended>>();
  request.done = [promise, &engine](const Status& status) {
    EXPECT_TRUE(engine.OnCommunicationThread());
    promise->set_value({status, std::this_thread::get_id()});
  };
  engine.Submit(std::move(request));
  EXPECT_FALSE(engine.OnCommunicationThread());
  return promise->get_future().get();  // the watchdog ends a wait that is too long
}

enum class Over { kLocal, kNode };

class WaitingTest : public TimedTest, public ::testing::WithParamInterface<Over> {
 protected:
  std::unique_ptr<Ranks> MakeRanks(int size) {
    if (GetParam() == Over::kLocal) return std::make_unique<Ranks>(size);
    nodes_ = std::make_unique<Nodes>(1, size);
    return std::make_unique<Ranks>(size, TestOptions(), nodes_->Decorator());
  }

 private:
  std::unique_ptr<Nodes> nodes_;
};
INSTANTIATE_TEST_SUITE_P(Transports, WaitingTest, ::testing::Values(Over::kLocal, Over::kNode),
                         [](const auto& test) {
                           return test.param == Over::kLocal ? "Local" : "Node";
                         });

TEST_P(WaitingTest, CallbacksRunOnTheCommunicationThread) {
  const std::unique_ptr<Ranks> ranks = MakeRanks(2);
  ranks->Each([](int rank, Engine& engine) {
    std::thread::id thread;
    for (int step = 0; step < 20; ++step) {
      const Job job = {"w", DataType::kFloat32, ReduceOp::kAverage, 5, step};
      std::vector<char> data = MakeInput(job, rank);
      const Ended ended = SubmitAndWait(engine, MakeRequest(job, data.data(), data.data()));
      EXPECT_TRUE(ended.status.ok());
      EXPECT_EQ(CheckOutput(job, AllRanks(2), data.data()), "");
      if (step == 0) thread = ended.thread;
      EXPECT_EQ(ended.thread, thread) << "one and the same";
    }
    EXPECT_NE(thread, std::this_thread::get_id());
  });
  ranks->JoinAll();
}

// Sizes for both kinds of reduction inside a node, with pauses after which a peer still polls for
// this rank's vote, and others after which it sleeps.
TEST_P(WaitingTest, RanksComeAtAnyTime) {
  constexpr int kRanks = 2;
  const std::unique_ptr<Ranks> ranks = MakeRanks(kRanks);
  ranks->Each([&](int rank, Engine& engine) {
    std::mt19937 random(10 + rank);
    for (int step = 0; step < kWaitSteps; ++step) {
      const size_t count = step % 7 == 0 ? 100'000 : 20;
      const Job job = {"w" + std::to_string(step % 7), DataType::kFloat32, ReduceOp::kAverage,
                       count, step};
      std::vector<char> data = MakeInput(job, rank);
      Request request = MakeRequest(job, data.data(), data.data());
      if (random() % 8 == 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 2 == 0 ? 200 : 1500));
      }
      const Ended ended = SubmitAndWait(engine, std::move(request));
      ASSERT_TRUE(ended.status.ok()) << ended.status.message();
      ASSERT_EQ(CheckOutput(job, AllRanks(kRanks), data.data()), "") << "step " << step;
    }
  });
  ranks->JoinAll();
}

TEST_P(WaitingTest, ThreadsOfARankWaitAtOnce) {
  constexpr int kRanks = 2;
  const std::unique_ptr<Ranks> ranks = MakeRanks(kRanks);
  ranks->Each([&](int rank, Engine& engine) {
    const auto train = [&](int model) {
      for (int step = 0; step < kWaitSteps / 4; ++step) {
        const Job job = {"m" + std::to_string(model), DataType::kFloat32, ReduceOp::kAverage, 40,
                         step + model};
        std::vector<char> data = MakeInput(job, rank);
        ASSERT_TRUE(SubmitAndWait(engine, MakeRequest(job, data.data(), data.data())).status.ok());
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

// A peer that comes when the communication thread has stopped polling and sleeps is noticed.
TEST_P(WaitingTest, WhoComesLateIsAnsweredAtOnce) {
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
      const Ended ended = SubmitAndWait(engine, MakeRequest(job, data.data(), data.data()));
      EXPECT_TRUE(ended.status.ok());
      if (rank == 0 && rank == late) slowest = std::max(slowest, Clock::now() - start);
      EXPECT_EQ(CheckOutput(job, AllRanks(2), data.data()), "");
    }
  });
  // A rank that is not notified sleeps for 20 ms.
  EXPECT_LT(slowest, milliseconds(TFMPI_SANITIZED ? 10'000 : 15));
  ranks->JoinAll();
}

// A request that cannot complete: the others leave.
TEST_P(WaitingTest, AFailureEndsTheWait) {
  const std::unique_ptr<Ranks> ranks = MakeRanks(2);
  std::thread leaver([&] {
    std::this_thread::sleep_for(milliseconds(20));
    (*ranks)[1].Leave("the test leaves", std::chrono::seconds(5));
  });
  const Job job = {"w", DataType::kFloat32, ReduceOp::kAverage, 3, 0};
  for (int step = 0; step < 3; ++step) {
    std::vector<char> data = MakeInput(job, 0);
    EXPECT_FALSE(
        SubmitAndWait((*ranks)[0], MakeRequest(job, data.data(), data.data())).status.ok());
  }
  leaver.join();
}

}  // namespace
}  // namespace tfmpi
