// Ranks that wait for one another: those that can continue do, and a deadlock is reported soon.

#include <atomic>

#include "gtest/gtest.h"
#include "tests/core/support/job.h"
#include "tests/core/support/ranks.h"

namespace tfmpi {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class WaitStateTest : public TimedTest {
 protected:
  WaitStateTest() { options_.coordinator.deadlock_timeout = milliseconds(700); }

  // An average of one element, `value`.
  Ending Give(Engine& engine, const std::string& name, float* value, bool blocks = false) {
    const Job job = {name, DataType::kFloat32, ReduceOp::kAverage, 1, 0};
    Request request = MakeRequest(job, value, value);
    request.blocks = blocks;
    if (blocks) request.purpose = Purpose::kScript;
    return Submit(engine, std::move(request));
  }

  static void ExpectDeadlock(Ending& ending, const std::vector<std::string>& parts) {
    const Status status = Await(ending);
    EXPECT_EQ(status.code(), Code::kUnavailable);
    for (const std::string& part : parts) {
      EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
    }
  }

  EngineOptions options_ = TestOptions();
};

TEST_F(WaitStateTest, ACrossingOfCallsEndsWithBothNames) {
  Ranks ranks(2, options_);
  ranks[1].script_state()->SetDoing("evaluate() of model 'm'");
  *ranks[1].script_state()->steps() = 2;
  float values[2] = {};
  const TimePoint start = Clock::now();
  Ending x = Give(ranks[0], "x", &values[0], /*blocks=*/true);
  Ending y = Give(ranks[1], "y", &values[1], /*blocks=*/true);
  for (Ending* ending : {&x, &y}) {
    ExpectDeadlock(*ending,
                   {"rank 0 waits for rank 1 in allreduce 'x'",
                    "rank 1, in evaluate() of model 'm', after 2 steps, waits for rank 0"});
  }
  EXPECT_LT(Clock::now() - start, seconds(TFMPI_SANITIZED ? 20 : 10));
  EXPECT_NE(ranks[1].failure().message().find("'x'"), std::string::npos);
}

TEST_F(WaitStateTest, ACrossingOfGradientsEndsWhenNothingElseHappens) {
  Ranks ranks(3, options_);
  float values[3] = {};
  Ending x = Give(ranks[0], "x", &values[0]);
  Ending y = Give(ranks[1], "y", &values[1]);
  Ending z = Give(ranks[2], "x", &values[2]);
  // Of ranks 0 and 2, the second to wait may still be unknown: rank 1 and one of them are enough.
  for (Ending* ending : {&x, &y, &z}) {
    ExpectDeadlock(*ending, {"waits for rank 1 in allreduce 'x'", "rank 1 waits for rank"});
  }
}

// As when one rank computes first, and then the other.
TEST_F(WaitStateTest, NoAlarmWhileARankComputes) {
  Ranks ranks(2, options_);
  float values[4] = {1, 2, 3, 4};
  Ending x = Give(ranks[0], "x", &values[0]);
  Ending y = Give(ranks[1], "y", &values[1]);
  const TimePoint end = Clock::now() + seconds(3);
  std::atomic<int> work{0};
  while (Clock::now() < end) ++work;
  Ending late_y = Give(ranks[0], "y", &values[2]);
  Ending late_x = Give(ranks[1], "x", &values[3]);
  for (Ending* ending : {&x, &y, &late_x, &late_y}) EXPECT_TRUE(Await(*ending).ok());
  EXPECT_EQ(values[0], 2.5);
  EXPECT_EQ(values[1], 2.5);
  ranks.JoinAll();
}

TEST_F(WaitStateTest, NoAlarmWhileARankSleeps) {
  Ranks ranks(2, options_);
  float values[2] = {1, 2};
  Ending early = Give(ranks[0], "x", &values[0], /*blocks=*/true);
  std::this_thread::sleep_for(seconds(3));
  Ending late = Give(ranks[1], "x", &values[1], /*blocks=*/true);
  EXPECT_TRUE(Await(early).ok());
  EXPECT_TRUE(Await(late).ok());
  EXPECT_EQ(values[0], 1.5);
  ranks.JoinAll();
}

TEST_F(WaitStateTest, NoAlarmWhereSeveralThreadsAskForSomething) {
  Ranks ranks(2, options_);
  float values[4] = {1, 2, 3, 4};
  for (int rank : {0, 1}) ranks[rank].script_state()->SetSeveralThreads(true);
  Ending x = Give(ranks[0], "x", &values[0]);
  Ending y = Give(ranks[1], "y", &values[1], /*blocks=*/true);
  std::this_thread::sleep_for(seconds(3));
  Ending late_y = Give(ranks[0], "y", &values[2], /*blocks=*/true);
  Ending late_x = Give(ranks[1], "x", &values[3]);
  for (Ending* ending : {&x, &y, &late_x, &late_y}) EXPECT_TRUE(Await(*ending).ok());
  ranks.JoinAll();
}

TEST_F(WaitStateTest, WhoWaitsForAFileHoldsUpNoGradient) {
  Ranks ranks(2, options_);
  float values[2] = {1, 2};
  for (int step = 0; step < 20; ++step) {
    values[0] = 7;
    Ending alone = Give(ranks[0], "w", &values[0]);
    if (step == 0) {  // later ones may be answered at once, since rank 1 still waits
      EXPECT_EQ(alone.wait_for(milliseconds(50)), std::future_status::timeout);
    }
    ranks[1].script_state()->BeginFileWait("model.keras", ranks[1].published().posts_heard(), true);
    ASSERT_TRUE(Await(alone).ok());
    EXPECT_EQ(values[0], 7) << "divided by those that give something";
  }
  ranks[1].script_state()->EndFileWait();
  EXPECT_EQ(ranks[1].script_state()->missed_gradients(), 20u);
  // Its variables are no longer those of rank 0.
  Ending refused = Give(ranks[1], "w", &values[1]);
  const Status status = Await(refused);
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_NE(status.message().find("broadcast_variables"), std::string::npos) << status.message();
  Ending meeting[2] = {Submit(ranks[0], MakeBarrier("b")), Submit(ranks[1], MakeBarrier("b"))};
  for (Ending& ending : meeting) EXPECT_TRUE(Await(ending).ok()) << "all else goes on";
  ranks[1].script_state()->ClearMissedGradients();
  values[0] = 1, values[1] = 2;
  Ending both[2] = {Give(ranks[0], "w", &values[0]), Give(ranks[1], "w", &values[1])};
  for (Ending& ending : both) EXPECT_TRUE(Await(ending).ok());
  EXPECT_EQ(values[0], 1.5);
  ranks.JoinAll();
}

// The wait has ended with a post, and the gradient that follows counts, however late it is.
TEST_F(WaitStateTest, NoGradientIsLostWhereAWaitEnds) {
  Ranks ranks(2, options_);
  for (int step = 0; step < 50; ++step) {
    float values[2] = {1, 2};
    ranks[1].script_state()->BeginFileWait("f", ranks[1].published().posts_heard(), true);
    if (step % 2 == 0) std::this_thread::sleep_for(milliseconds(step));
    ranks[0].Post("saves");
    Ending early = Give(ranks[0], "w", &values[0]);
    while (ranks[1].published().Posted("saves") == step) std::this_thread::yield();
    if (step % 3 == 0) std::this_thread::sleep_for(milliseconds(30));
    ranks[1].script_state()->EndFileWait();
    Ending late = Give(ranks[1], "w", &values[1]);
    ASSERT_TRUE(Await(early).ok());
    ASSERT_TRUE(Await(late).ok());
    ASSERT_EQ(values[0], 1.5) << "step " << step;
  }
  EXPECT_EQ(ranks[1].script_state()->missed_gradients(), 0u);
  ranks.JoinAll();
}

TEST_F(WaitStateTest, WhoIsInABarrierHoldsUpNoGradient) {
  Ranks ranks(2, options_);
  Request barrier = MakeBarrier("b");
  barrier.blocks = barrier.has_no_gradients = true;
  Ending waits = Submit(ranks[1], std::move(barrier));
  for (int step = 0; step < 3; ++step) {
    float value = 7;
    Ending alone = Give(ranks[0], "w", &value);
    ASSERT_TRUE(Await(alone).ok());
    EXPECT_EQ(value, 7);
  }
  Ending comes = Submit(ranks[0], MakeBarrier("b"));
  EXPECT_TRUE(Await(comes).ok());
  EXPECT_TRUE(Await(waits).ok());
  ranks.JoinAll();
}

}  // namespace
}  // namespace tfmpi
