// So many schedules (SCHEDULES) without a hang, a wrong sum, or a rank that is not told.

#include "gtest/gtest.h"
#include "tests/core/faults/schedule.h"
#include "tests/core/faults/seeds.h"

namespace tfmpi {
namespace {

// The engines run on one thread: nothing for ThreadSanitizer, which does not know such stacks.
#if !defined(__SANITIZE_THREAD__)

// Faults that stand: a rank waits in Join for rank 0, which has died without a word.
const std::set<uint64_t> kStand = {6421, 7353, 7577, 8090};

TEST(SchedulesTest, EveryRankEndsRightlyOrWithAnError) {
  EXPECT_EQ(RunSeeds(0, SCHEDULES, kStand), "");
}

// Who mends one of them takes it out of the list.
TEST(SchedulesTest, WhatStandsIsStillSeen) {
  for (const uint64_t seed : kStand) EXPECT_NE(RunSeeds(seed, 1), "") << seed;
}

// The same seed is the same run, to the last turn.
TEST(SchedulesTest, ASeedCanBePlayedAgain) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const ScheduleResult one = RunPlan(MakePlan(seed)), other = RunPlan(MakePlan(seed));
    EXPECT_EQ(one.turns, other.turns) << seed;
    EXPECT_EQ(one.endings, other.endings) << seed;
    EXPECT_EQ(one.seconds, other.seconds) << seed;
  }
}

#endif

}  // namespace
}  // namespace tfmpi
