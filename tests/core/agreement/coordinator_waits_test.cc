// How the coordinator uses what ranks report about their waits.

#include "tests/core/agreement/coordinator_fixture.h"

namespace tfmpi {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

void ExpectParts(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
  }
}

class DeadlockTest : public CoordinatorTest {
 protected:
  // The fatal message once nothing more is in transit; "" if the coordinator keeps waiting.
  std::string Fatal() {
    std::string fatal = Decide().fatal;
    for (int look = 0; look < 3 && fatal.empty(); ++look) {
      Advance(milliseconds(400));
      fatal = Decide().fatal;
    }
    return fatal;
  }
};

TEST_F(DeadlockTest, RanksThatAreBlockedInOneAnothersCallsAreToldBoth) {
  Start(2);
  Ready(0, "x", Of(OpKind::kAllgather));
  Ready(1, "y", Of(OpKind::kBarrier));
  doing_ = "fit() of model 'm'";
  BlockedIn(0, "x");
  EXPECT_EQ(Fatal(), "") << "rank 1 may still ask for it";
  BlockedIn(1, "y");
  ExpectParts(Fatal(), {"rank 0, in fit() of model 'm', waits for rank 1 in allgather 'x'",
                        "rank 1, in fit() of model 'm', waits for rank 0 in barrier 'y'",
                        ". All ranks must take the same steps in the same order: make sure that"});
}

TEST_F(DeadlockTest, ACircleOfSomeRanksIsEnough) {
  Start(4);
  Ready(1, "x", Of(OpKind::kBarrier));
  Ready(2, "y", Of(OpKind::kBarrier));
  Ready(3, "x", Of(OpKind::kBarrier));
  for (int rank : {1, 3}) BlockedIn(rank, "x");
  EXPECT_EQ(Fatal(), "");
  BlockedIn(2, "y");
  const std::string fatal = Fatal();  // independent of what rank 0 does
  ExpectParts(fatal,
              {"rank 1 waits for rank 2 in", "rank 2 waits for ranks 1 and 3", "rank 3 waits"});
  EXPECT_EQ(fatal.find("rank 0"), std::string::npos) << fatal;
}

TEST_F(DeadlockTest, EachOneMustLast) {
  Start(2);
  const auto begin = [&] {
    for (int rank : {0, 1}) {
      const std::string name(1, static_cast<char>('x' + rank));
      Ready(rank, name, Of(OpKind::kBarrier));
      BlockedIn(rank, name);
    }
    Advance(milliseconds(100));
    EXPECT_EQ(Decide().fatal, "") << "a message in transit may resolve it";
  };
  begin();
  Withdraw(0, "x");
  Withdraw(1, "y");
  Advance(milliseconds(100));
  Decide();
  Advance(seconds(10));
  begin();
  EXPECT_NE(Fatal(), "");
}

TEST_F(DeadlockTest, WhoWaitsForARankThatGoesOnIsNotStuck) {
  Start(3);
  for (int rank : {0, 1}) {
    Ready(rank, "x", Of(OpKind::kBarrier));
    BlockedIn(rank, "x");
  }
  EXPECT_EQ(Fatal(), "") << "rank 2 sleeps, or computes";
  Join(2);
  EXPECT_EQ(Decide().responses.size(), 1u);
}

// A step may submit more requests: only idleness shows that it does not.
TEST_F(DeadlockTest, GradientsCountWhenTheRankIsStill) {
  Start(2);
  Ready(0, "x", {1});
  Ready(1, "y", {1});
  EXPECT_EQ(Fatal(), "");
  Idle(0, 0);
  EXPECT_EQ(Fatal(), "") << "rank 1 computes";
  Idle(1, 0);
  ExpectParts(Fatal(), {"rank 0 waits for rank 1 in allreduce 'x'", "allreduce 'y'"});
}

TEST_F(DeadlockTest, AStillRankAndABlockedOne) {
  Start(2);
  Ready(0, "evaluation 1", Of(OpKind::kAllgather));
  Ready(1, "w", {1});
  BlockedIn(0, "evaluation 1");
  EXPECT_EQ(Fatal(), "");
  Idle(1, 0);
  ExpectParts(Fatal(), {"'evaluation 1'", "'w'"});
}

TEST_F(DeadlockTest, NobodyWaitsInWhatGoesOnBesideTheSteps) {
  for (const Purpose purpose : {Purpose::kBackground, Purpose::kData}) {
    Start(2);
    ReadyList ready_list;
    ready_list.requests.push_back({"rows", Of(OpKind::kAllgather), 0, purpose});
    Send(0, ready_list);
    Ready(1, "w", {1});
    for (int rank : {0, 1}) Idle(rank, 0);
    EXPECT_EQ(Fatal(), "") << "rank 0 may sleep in a callback";
  }
}

TEST_F(DeadlockTest, WhatWasSaidBeforeAnAnswerIsOld) {
  Start(2);
  ReadyEverywhere("w", {1});
  EXPECT_EQ(Decide().responses.size(), 1u);
  Ready(0, "x", {1});
  Ready(1, "y", {1});
  Idle(0, 1);
  Idle(1, 0);  // before it received the answer to 'w'
  EXPECT_EQ(Fatal(), "");
  Idle(1, 1);
  EXPECT_NE(Fatal(), "");
}

TEST_F(DeadlockTest, WhoAsksForMoreIsNotBlocked) {
  Start(2);
  Ready(0, "x", {1});
  Ready(1, "y", {1});
  for (int rank : {0, 1}) Idle(rank, 0);
  Ready(1, "x", {1});
  EXPECT_EQ(Fatal(), "");
}

// A dataset's thread reads ahead while the script's thread is blocked.
TEST_F(DeadlockTest, WhoseDataIsReadAheadIsStillBlocked) {
  for (const Purpose purpose : {Purpose::kBackground, Purpose::kData}) {
    for (const bool withdrawn : {false, true}) {
      Start(2);
      for (int rank : {0, 1}) {
        const std::string name(1, static_cast<char>('x' + rank));
        Ready(rank, name, Of(OpKind::kBarrier));
        BlockedIn(rank, name);
      }
      ReadyList ready_list;
      ready_list.requests.push_back({"batch", Of(OpKind::kAllgather), 0, purpose});
      Send(1, ready_list);
      if (withdrawn) Withdraw(1, "batch");
      EXPECT_NE(Fatal(), "");
    }
  }
}

TEST_F(DeadlockTest, ABlockedRankWhoseRequestWasAnsweredGoesOn) {
  Start(2);
  Ready(0, "x", Of(OpKind::kBarrier));
  BlockedIn(0, "x");
  Ready(1, "x", Of(OpKind::kBarrier));
  BlockedIn(1, "x");  // it was answered meanwhile
  EXPECT_EQ(Decide().responses.size(), 1u);
  Ready(0, "x", Of(OpKind::kBarrier));
  Ready(1, "y", Of(OpKind::kBarrier));
  BlockedIn(1, "y");
  EXPECT_EQ(Fatal(), "") << "rank 0 has not said that it is blocked this time";
  BlockedIn(0, "x");
  Withdraw(0, "x");
  EXPECT_EQ(Fatal(), "");
}

TEST_F(DeadlockTest, ZeroMeansNever) {
  CoordinatorOptions options;
  options.deadlock_timeout = seconds(0);
  Start(2, options);
  for (int rank : {0, 1}) {
    const std::string name(1, static_cast<char>('x' + rank));
    Ready(rank, name, Of(OpKind::kBarrier));
    BlockedIn(rank, name);
  }
  EXPECT_EQ(Fatal(), "");
}

class GivesNothingTest : public DeadlockTest {
 protected:
  void WaitsForFile(int rank, uint64_t posts, bool has_no_gradients = true) {
    WaitState wait_state;
    wait_state.blocked = WaitState::Blocked::kForFile;
    wait_state.what = "model.keras";
    wait_state.posts = posts;
    wait_state.has_no_gradients = has_no_gradients;
    ReportState(rank, wait_state);
  }
  int Contributors() {
    const ResponseList response_list = Decide();
    return response_list.responses.empty() ? 0 : response_list.responses[0].contributors;
  }
};

TEST_F(GivesNothingTest, GradientsGoOnWithoutARankThatWaitsForAFile) {
  Start(3);
  WaitsForFile(1, 0);
  for (int step = 0; step < 3; ++step) {
    for (int rank : {0, 2}) ReadyByNumber(rank, "w", {1});
    EXPECT_EQ(Contributors(), 2);
  }
  const std::vector<std::string> notices = Notices();
  ASSERT_EQ(notices.size(), 1u) << "said once";
  ExpectParts(notices[0],
              {"rank 1 waits for rank 0's file 'model.keras'", "the remaining 2 ranks"});
}

TEST_F(GivesNothingTest, WhatWaitedForItIsReleased) {
  Start(2);
  Ready(0, "w", {1});
  EXPECT_EQ(Contributors(), 0);
  WaitsForFile(1, 0);
  EXPECT_EQ(Contributors(), 1);
}

// A post may end its wait: then it has continued, and its gradient counts.
TEST_F(GivesNothingTest, NotAfterAPostThatItHasNotLookedAt) {
  Start(2);
  WaitsForFile(1, 0);
  Post("saves");
  Ready(0, "w", {1});
  EXPECT_EQ(Contributors(), 0);
  WaitsForFile(1, 0);  // was in transit
  EXPECT_EQ(Contributors(), 0);
  WaitsForFile(1, 1);
  EXPECT_EQ(Contributors(), 1);
}

TEST_F(GivesNothingTest, NotOnceItSaysThatItGoesOn) {
  Start(2);
  WaitsForFile(1, 0);
  ReportState(1, WaitState());
  Ready(0, "w", {1});
  EXPECT_EQ(Contributors(), 0);
  Ready(1, "w", {1});
  EXPECT_EQ(Contributors(), 2);
}

TEST_F(GivesNothingTest, ABarrierIsLeftWhenTheOthersComeToIt) {
  Start(2);
  Ready(1, "b", Of(OpKind::kBarrier));
  BlockedIn(1, "b", /*has_no_gradients=*/true);
  Ready(0, "w", {1});
  EXPECT_EQ(Contributors(), 1);
  Ready(0, "b", Of(OpKind::kBarrier));
  EXPECT_EQ(Contributors(), 2);
  Ready(0, "w", {1});
  EXPECT_EQ(Contributors(), 0) << "rank 1 has left the barrier";
}

// Each is described correctly: the one that has ended, and the one that waits for something else.
TEST_F(GivesNothingTest, WhoHasEndedAndWhoWaitsAreToldApart) {
  Start(3);
  WaitsForFile(1, 0);
  Join(2);
  Ready(0, "w", {1});
  EXPECT_EQ(Contributors(), 1);
  const std::vector<std::string> notices = Notices();
  ASSERT_EQ(notices.size(), 1u);
  ExpectParts(notices[0],
              {"the script has ended on 1 of 3 ranks (rank 2)",
               "; rank 1 waits for rank 0's file 'model.keras'", "the remaining 1 rank"});
  ReadyList ready_list;
  ready_list.requests = {{"most", Of(OpKind::kAllreduce, ReduceOp::kMax), 0, Purpose::kBackground}};
  Send(0, ready_list);
  const ResponseList response_list = Decide();
  ASSERT_EQ(response_list.errors.size(), 1u);
  ExpectParts(
      response_list.errors[0].message,
      {"needs all ranks, but the script has ended on 1 of 3 ranks (rank 2)", "; rank 1 waits"});
}

// Everything except an optimizer's gradients needs every rank: collective calls, and the script's
// own averages.
TEST_F(GivesNothingTest, OnlyGradientsGoOn) {
  for (const Signature& signature :
       {Of(OpKind::kAllgather), Of(OpKind::kAllreduce, ReduceOp::kSum), Of(OpKind::kBroadcast)}) {
    Start(2);
    WaitsForFile(1, 0);
    Ready(0, "x", signature);
    EXPECT_EQ(Contributors(), 0) << Describe(signature);
  }
  Start(2);
  WaitsForFile(1, 0);
  ReadyList ready_list;
  ready_list.requests.push_back({"loss", Average({1}), 0, Purpose::kScript});
  Send(0, ready_list);
  EXPECT_EQ(Contributors(), 0);
  // Requests beside the steps are not waited for, and block no rank.
  ready_list.requests = {{"hashes", Of(OpKind::kAllgather), 0, Purpose::kBackground}};
  Send(0, ready_list);
  EXPECT_EQ(Contributors(), 1);
  ready_list.requests = {{"batch", Of(OpKind::kAllgather), 0, Purpose::kData}};
  Send(0, ready_list);
  EXPECT_EQ(Contributors(), 0);
  Start(2);
  WaitsForFile(1, 0, /*has_no_gradients=*/false);
  Ready(0, "w", {1});
  EXPECT_EQ(Contributors(), 0);
}

// Of a sparse gradient, and then of a divided update (glue/extras/divided_update.h).
TEST_F(GivesNothingTest, RowsGoOnToo) {
  for (const int extra : {8, 0}) {
    Start(2);
    WaitsForFile(1, 0);
    Signature rows = Of(OpKind::kSparseAllgather);
    rows.extra_row_bytes = extra;
    Ready(0, "rows", rows);
    EXPECT_EQ(Contributors(), 1);
  }
}

TEST_F(GivesNothingTest, AStallSaysWhatTheLateRankIsIn) {
  Start(3);
  WaitState wait_state;
  wait_state.doing = "evaluate() of model 'm', after 3 steps";
  ReportState(1, wait_state);
  WaitsForFile(2, 0);  // nobody waits for this one
  Ready(0, "w", {1});
  Advance(seconds(61));
  Decide();
  const std::vector<std::string> notices = Notices();
  ASSERT_EQ(notices.size(), 1u);
  ExpectParts(notices[0],
              {"on rank 0 has waited 61 s for rank 1 (rank 1, in evaluate() of model 'm', after 3 "
               "steps, has not asked for anything yet);"});
}

}  // namespace
}  // namespace tfmpi
