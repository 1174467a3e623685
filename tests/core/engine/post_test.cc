// Posts: messages of rank 0 to all ranks for which no rank waits.

#include <algorithm>

#include "gtest/gtest.h"
#include "tests/core/support/job.h"
#include "tests/core/support/ranks.h"

namespace tfmpi {
namespace {

using std::chrono::milliseconds;

class PostTest : public TimedTest, public ::testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, PostTest, ::testing::Values(1, 2, 3, 5));

// Waits until `engine` has received `times` posts; the watchdog ends a wait that is too long.
void AwaitPosted(const Engine& engine, const std::string& key, int64_t times) {
  while (engine.published().Posted(key) < times) std::this_thread::sleep_for(milliseconds(1));
}

TEST_P(PostTest, ReachesRanksThatAskForNothing) {
  Ranks ranks(GetParam());
  std::this_thread::sleep_for(milliseconds(50));  // all are idle
  const TimePoint start = Clock::now();
  ranks[0].Post("saved");
  EXPECT_EQ(ranks[0].published().Posted("saved"), 1);
  ranks.Each([](int, Engine& engine) { AwaitPosted(engine, "saved", 1); });
  EXPECT_LT(Clock::now() - start, kPromptly);
  ranks.Each([](int, Engine& engine) { EXPECT_EQ(engine.published().Posted("other"), 0); });
  ranks.JoinAll();
}

TEST_P(PostTest, IsCountedByKeyWhileRanksAverage) {
  Ranks ranks(GetParam());
  constexpr int kSteps = 60;
  ranks.Each([&](int rank, Engine& engine) {
    for (int step = 0; step < kSteps; ++step) {
      if (rank == 0) engine.Post("step");
      if (rank == 0 && step % 3 == 0) engine.Post("third");
      float value = static_cast<float>(rank);
      const Job job = {"w", DataType::kFloat32, ReduceOp::kSum, 1, step};
      Ending ending = Submit(engine, MakeRequest(job, &value, &value));
      ASSERT_TRUE(Await(ending).ok());
    }
    AwaitPosted(engine, "step", kSteps);
    AwaitPosted(engine, "third", kSteps / 3);
  });
  ranks.JoinAll();
  for (int rank = 0; rank < ranks.size(); ++rank) {
    EXPECT_EQ(ranks[rank].published().Posted("step"), kSteps);
    EXPECT_EQ(ranks[rank].published().Posted("third"), kSteps / 3);
  }
}

TEST_P(PostTest, SaysWhatStandsAfterALineBreak) {
  Ranks ranks(GetParam());
  ranks[0].Post("saved\n/a");
  ranks[0].Post("saved");
  ranks[0].Post("saved\n/b\nc");
  ranks.Each([](int, Engine& engine) {
    AwaitPosted(engine, "saved", 3);
    EXPECT_EQ(engine.published().PostedValue("saved", 0), "/a");
    EXPECT_EQ(engine.published().PostedValue("saved", 1), "");
    EXPECT_EQ(engine.published().PostedValue("saved", 2), "/b\nc");
    EXPECT_EQ(engine.published().PostedValue("saved", 3), "");
    EXPECT_EQ(engine.published().PostedValue("other", 0), "");
  });
  ranks.JoinAll();
}

// Not on a rank that waits itself, and not once all have submitted.
TEST_P(PostTest, TellThatRank0Waits) {
  if (GetParam() == 1) return;
  Ranks ranks(GetParam());
  ranks.Each([&](int rank, Engine& engine) {
    if (rank == ranks.size() - 1) AwaitPosted(engine, kRank0Waits, 3);
    Ending ending = Submit(engine, MakeBarrier("late"));
    EXPECT_TRUE(Await(ending).ok());
    const int64_t told = engine.published().Posted(kRank0Waits);
    std::this_thread::sleep_for(milliseconds(500));
    EXPECT_EQ(engine.published().Posted(kRank0Waits), told);
  });
  ranks.JoinAll();
}

TEST_P(PostTest, BeforeJoinIsDeliveredBeforeTheEnd) {
  for (int i = 0; i < 20; ++i) {
    Ranks ranks(GetParam());
    ranks.Each([](int rank, Engine& engine) {
      if (rank == 0) engine.Post("last");
      EXPECT_TRUE(engine.Join().ok());
      EXPECT_EQ(engine.published().Posted("last"), 1) << "rank " << rank;
    });
  }
}

TEST_P(PostTest, BeforeLeaveIsDeliveredBeforeTheEnd) {
  if (GetParam() == 1) return;
  Ranks ranks(GetParam());
  ranks[0].Post("last");
  ranks[0].Leave("rank 0 is tired", std::chrono::seconds(5));
  for (int rank = 1; rank < ranks.size(); ++rank) {
    Ending ending = Submit(ranks[rank], MakeBarrier("never"));
    EXPECT_EQ(Await(ending).code(), Code::kUnavailable);
    EXPECT_EQ(ranks[rank].published().Posted("last"), 1) << "rank " << rank;
  }
}

// A post is no request: a rank that has joined receives it, and the others still end in order.
TEST_P(PostTest, ReachesRanksThatHaveJoined) {
  if (GetParam() == 1) return;
  Ranks ranks(GetParam());
  ranks.Each([](int rank, Engine& engine) {
    if (rank == 0) {
      std::this_thread::sleep_for(milliseconds(50));  // the others have joined
      engine.Post("late");
    }
    EXPECT_TRUE(engine.Join().ok());
    EXPECT_EQ(engine.published().Posted("late"), 1) << "rank " << rank;
  });
}

TEST_P(PostTest, OfAnotherRankThanTheFirstDoesNothing) {
  if (GetParam() == 1) return;
  Ranks ranks(GetParam());
  ranks[1].Post("x");
  ranks.JoinAll();
  for (int rank = 0; rank < ranks.size(); ++rank) EXPECT_EQ(ranks[rank].published().Posted("x"), 0);
}

// A rank that waits for the end knows for whom.
TEST_P(PostTest, EveryRankIsToldWhoHasJoined) {
  Ranks ranks(GetParam());
  const int last = ranks.size() - 1;
  ranks.Each([&](int rank, Engine& engine) {
    if (rank == last) {
      AwaitPosted(engine, kJoinedPost, last);
      std::vector<std::string> joined;
      for (int i = 0; i < last; ++i)
        joined.push_back(engine.published().PostedValue(kJoinedPost, i));
      std::sort(joined.begin(), joined.end());
      for (int i = 0; i < last; ++i) EXPECT_EQ(joined[i], std::to_string(i));
    }
    EXPECT_TRUE(engine.Join().ok());
    EXPECT_EQ(engine.published().Posted(kJoinedPost), last + 1);
  });
}

}  // namespace
}  // namespace tfmpi
