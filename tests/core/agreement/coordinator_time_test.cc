// How the coordinator handles ranks that end, ranks that are late, and ranks with the same data.

#include "tests/core/agreement/coordinator_fixture.h"

namespace tfmpi {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

using JoinTest = CoordinatorTest;

TEST_F(JoinTest, AveragesGoOnOverTheRemaining) {
  Start(3);
  Join(1);
  EXPECT_TRUE(Decide().empty());
  for (int rank : {0, 2}) Ready(rank, "w", {1});
  const ResponseList response_list = Decide();
  ASSERT_EQ(response_list.responses.size(), 1u);
  EXPECT_EQ(response_list.responses[0].contributors, 2);
  const std::vector<std::string> notices = Notices();
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_TRUE(
      Contains(notices[0], "1 of 3 ranks (rank 1); averages are now over the remaining 2 ranks"))
      << notices[0];
  ReadyByNumber(0, "w", {1});
  ReadyByNumber(2, "w", {1});
  Decide();
  EXPECT_TRUE(Notices().empty()) << "said once";
}

// A rank that has ended reads no more data ahead; one that goes on may be about to end as well.
TEST_F(JoinTest, WhatGoesOnBesideTheStepsIsNotSaid) {
  Start(2);
  Join(1);
  for (const Purpose purpose : {Purpose::kBackground, Purpose::kData}) {
    ReadyList ready_list;
    ready_list.requests.push_back({"batch", Of(OpKind::kAllgather), 0, purpose});
    Send(0, ready_list);
    EXPECT_EQ(Decide().responses.at(0).contributors, 1);
    EXPECT_TRUE(Notices().empty());
  }
  Ready(0, "w", {1});
  Decide();
  const std::vector<std::string> notices = Notices();
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_TRUE(Contains(notices[0], "; averages are now over the remaining 1 rank")) << notices[0];
}

TEST_F(JoinTest, TheLastRankToJoinReleasesWhatWaitedForIt) {
  Start(3);
  for (int rank : {0, 2}) Ready(rank, "w", {1});
  EXPECT_TRUE(Decide().empty());
  Join(1);
  const ResponseList response_list = Decide();
  ASSERT_EQ(response_list.responses.size(), 1u);
  EXPECT_EQ(response_list.responses[0].contributors, 2);
}

TEST_F(JoinTest, OneRankLeftAveragesAlone) {
  Start(3);
  Join(0);
  Join(2);
  Ready(1, "w", {1});
  EXPECT_EQ(Decide().responses.at(0).contributors, 1);
  EXPECT_FALSE(Decide().finished);
  Join(1);
  EXPECT_TRUE(Decide().finished);
}

TEST_F(JoinTest, TensorsWithDifferentContributorsDoNotFuse) {
  Start(3);
  ReadyEverywhere("a", {1});
  for (int rank : {0, 1}) Ready(rank, "b", {1});
  Join(2);
  const ResponseList response_list = Decide();
  ASSERT_EQ(response_list.responses.size(), 2u);
  EXPECT_EQ(response_list.responses[0].contributors, 3);
  EXPECT_EQ(response_list.responses[1].contributors, 2);
}

TEST_F(JoinTest, WhatZerosCannotStandInForFails) {
  const std::vector<Signature> failing = {
      Of(OpKind::kAllreduce, ReduceOp::kMin), Of(OpKind::kAllreduce, ReduceOp::kMax),
      Of(OpKind::kAllreduce, ReduceOp::kProduct), Of(OpKind::kBroadcast, ReduceOp::kAverage, 1)};
  for (const Signature& signature : failing) {
    Start(2);
    Join(1);
    Ready(0, "x", signature);
    const ResponseList response_list = Decide();
    EXPECT_TRUE(response_list.responses.empty()) << Describe(signature);
    ASSERT_EQ(response_list.errors.size(), 1u) << Describe(signature);
    EXPECT_EQ(response_list.errors[0].code, Code::kFailedPrecondition);
    EXPECT_TRUE(Contains(response_list.errors[0].message, "ended on 1 of 2 ranks (rank 1)"))
        << response_list.errors[0].message;
  }
}

TEST_F(JoinTest, WhatZerosDoForGoesOn) {
  const std::vector<Signature> working = {
      Of(OpKind::kAllreduce), Of(OpKind::kAllreduce, ReduceOp::kSum), Of(OpKind::kAllgather),
      Of(OpKind::kBarrier), Of(OpKind::kBroadcast)};
  for (const Signature& signature : working) {
    Start(2);
    Join(1);
    Ready(0, "x", signature);
    const ResponseList response_list = Decide();
    EXPECT_TRUE(response_list.errors.empty()) << Describe(signature);
    EXPECT_EQ(response_list.responses.size(), 1u) << Describe(signature);
    const std::string what = IsAverage(signature)
                                 ? "averages are now over"
                                 : Name(signature.kind) + std::string(" 'x' continues with");
    const std::vector<std::string> notices = Notices();
    ASSERT_EQ(notices.size(), 1u);
    EXPECT_TRUE(Contains(notices[0], "; " + what + " the remaining 1 rank")) << notices[0];
  }
}

TEST_F(JoinTest, JoiningTwiceCountsOnce) {
  Start(2);
  Join(0);
  Join(0);
  EXPECT_FALSE(Decide().finished);
  Join(1);
  EXPECT_TRUE(Decide().finished);
}

class StallTest : public CoordinatorTest {
 protected:
  StallTest() {
    options_.stall_warning = seconds(60);
    options_.stall_timeout = seconds(600);
  }
  CoordinatorOptions options_;
};

TEST_F(StallTest, WarnsOncePerIntervalWithTheMissingRanks) {
  Start(4, options_);
  Ready(1, "early", {1});
  Advance(seconds(2));
  Ready(3, "w", {1});
  Ready(0, "w", {1});
  Advance(seconds(59));
  Decide();
  const std::vector<std::string> first = Notices();
  ASSERT_EQ(first.size(), 1u) << "'early' alone is old enough";
  EXPECT_TRUE(Contains(first[0], "'early'")) << first[0];
  Advance(seconds(1));
  Decide();
  const std::vector<std::string> notices = Notices();
  ASSERT_EQ(notices.size(), 1u);
  for (const char* part :
       {"allreduce 'w' on rank 3 has waited 60 s for ranks 1 and 2 (", "TF_MPI_STALL_TIMEOUT",
        "rank 1 last asked for 'early' 62 s ago", "rank 2 has not asked for anything yet"}) {
    EXPECT_TRUE(Contains(notices[0], part)) << part << " in: " << notices[0];
  }
  Advance(seconds(1));
  Decide();
  EXPECT_TRUE(Notices().empty());
  Advance(seconds(60));
  Decide();
  const std::vector<std::string> again = Notices();
  ASSERT_EQ(again.size(), 1u) << "one line, however many tensors wait";
  EXPECT_TRUE(Contains(again[0], " (and 1 more request waits)")) << again[0];
}

TEST_F(StallTest, TheTimeoutIsAnErrorThatListsTheMissingRanks) {
  Start(4, options_);
  Ready(0, "w", {1});
  Ready(2, "w", {1});
  Advance(seconds(600));
  const ResponseList response_list = Decide();
  ASSERT_EQ(response_list.errors.size(), 1u);
  EXPECT_EQ(response_list.errors[0].code, Code::kDeadlineExceeded);
  EXPECT_TRUE(Contains(response_list.errors[0].message, "'w'")) << response_list.errors[0].message;
  EXPECT_TRUE(Contains(response_list.errors[0].message, "for ranks 1 and 3 "))
      << response_list.errors[0].message;
  // That error has answered the late ranks' requests.
  Ready(1, "w", {1});
  Ready(3, "w", {1});
  EXPECT_TRUE(Decide().empty());
  ReadyEverywhere("w", {1});
  EXPECT_EQ(Decide().responses.size(), 1u);
}

TEST_F(StallTest, FinishedRanksAreNotMissing) {
  Start(3, options_);
  Ready(0, "w", {1});
  Join(2);
  Advance(seconds(601));
  const ResponseList response_list = Decide();
  ASSERT_EQ(response_list.errors.size(), 1u);
  EXPECT_TRUE(Contains(response_list.errors[0].message, "for rank 1 "))
      << response_list.errors[0].message;
}

TEST_F(StallTest, ZeroMeansNever) {
  options_.stall_warning = options_.stall_timeout = seconds(0);
  Start(2, options_);
  Ready(0, "w", {1});
  Advance(std::chrono::hours(1000));
  EXPECT_TRUE(Decide().errors.empty());
  EXPECT_TRUE(Notices().empty());
}

TEST_F(StallTest, AWarningWithoutATimeoutAnnouncesNoError) {
  options_.stall_timeout = seconds(0);
  Start(2, options_);
  for (const char* name : {"a", "b", "w"}) Ready(0, name, {1});
  Advance(seconds(60));
  Decide();
  const std::vector<std::string> notices = Notices();
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_TRUE(Contains(notices[0], " (and 2 more requests wait)")) << notices[0];
  EXPECT_FALSE(Contains(notices[0], "error")) << notices[0];
}

TEST_F(StallTest, RanksAreToldThatRank0WaitsAndNobodyElse) {
  Start(3, options_);
  Ready(1, "others", {1});
  Advance(seconds(1));
  EXPECT_TRUE(Decide().empty());
  Ready(0, "w", {1});
  Advance(milliseconds(100));
  EXPECT_TRUE(Decide().empty());
  for (int time = 0; time < 3; ++time) {
    Advance(milliseconds(200));
    EXPECT_EQ(Decide().posts, std::vector<std::string>{kRank0Waits});
  }
  Ready(1, "w", {1});
  Ready(2, "w", {1});
  Advance(milliseconds(200));
  EXPECT_TRUE(Decide().posts.empty());
}

TEST_F(StallTest, WhatMovesOnIsNoStall) {
  Start(2, options_);
  for (int step = 0; step < 100; ++step) {
    ReadyEverywhere("w", {1});
    Advance(seconds(30));
    EXPECT_EQ(Decide().responses.size(), 1u);
  }
  EXPECT_TRUE(Notices().empty());
}

class FingerprintTest : public CoordinatorTest {
 protected:
  // One step of two gradients; the prints by rank.
  void Step(const std::vector<uint64_t>& a, const std::vector<uint64_t>& b) {
    for (size_t rank = 0; rank < a.size(); ++rank) {
      Ready(static_cast<int>(rank), "a", Average({1}), a[rank]);
      Ready(static_cast<int>(rank), "b", Average({1}), b[rank]);
    }
    Decide();
    for (std::string& notice : Notices()) {
      EXPECT_TRUE(Contains(notice, "bitwise identical")) << notice;
      EXPECT_TRUE(Contains(notice, "tf.mpi.own_data()")) << "a loop without a dataset: " << notice;
      notices_.push_back(notice);
    }
  }
  std::vector<std::string> notices_;
};

TEST_F(FingerprintTest, EqualDataIsSaidOnce) {
  Start(3);
  for (int step = 0; step < 5; ++step) Step({7, 7, 7}, {8, 8, 8});
  ASSERT_EQ(notices_.size(), 1u);
  EXPECT_TRUE(Contains(notices_[0], "shard")) << notices_[0];
}

TEST_F(FingerprintTest, OneGradientThatDiffersIsEnough) {
  Start(3);
  for (int step = 0; step < 5; ++step) Step({7, 7, 7}, {8, 8, 9});
  EXPECT_TRUE(notices_.empty());
}

TEST_F(FingerprintTest, LaterStepsDoNotCount) {
  Start(2);
  Step({7, 8}, {8, 9});
  for (int step = 0; step < 5; ++step) Step({7, 7}, {8, 8});
  EXPECT_TRUE(notices_.empty());
}

TEST_F(FingerprintTest, ZerosAndOneRankSayNothing) {
  Start(2);
  for (int step = 0; step < 3; ++step) Step({0, 0}, {0, 0});
  Start(1);
  for (int step = 0; step < 3; ++step) Step({7}, {8});
  EXPECT_TRUE(notices_.empty());
}

TEST_F(FingerprintTest, AStepWithoutARankSaysNothing) {
  Start(2);
  Join(1);
  for (int step = 0; step < 3; ++step) {
    Ready(0, "a", Average({1}), 7);
    Decide();
  }
  for (const std::string& notice : Notices()) {
    EXPECT_FALSE(Contains(notice, "bitwise identical")) << notice;
  }
}

TEST_F(FingerprintTest, ZerosBesideADifferenceAreNoEquality) {
  Start(2);
  for (int step = 0; step < 3; ++step) Step({0, 7}, {8, 8});
  EXPECT_TRUE(notices_.empty());
}

// Other operations under a repeated name do not end the first step.
TEST_F(FingerprintTest, ABarrierIsNoGradient) {
  Start(2);
  for (int rank : {0, 1}) Ready(rank, "a", Average({1}), 7);
  Decide();
  for (int i = 0; i < 2; ++i) {
    for (int rank : {0, 1}) Ready(rank, "barrier", Of(OpKind::kBarrier));
    Decide();
  }
  EXPECT_TRUE(Notices().empty());
  for (int rank : {0, 1}) Ready(rank, "b", Average({1}), 8 + static_cast<uint64_t>(rank));
  Decide();
  for (int step = 0; step < 3; ++step) Step({7, 7}, {8, 9});
  EXPECT_TRUE(notices_.empty());
}

}  // namespace
}  // namespace tfmpi
