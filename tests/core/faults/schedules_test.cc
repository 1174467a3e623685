// So many schedules (SCHEDULES) without a hang, a wrong sum, or a rank that is not told.

#include "gtest/gtest.h"
#include "tests/core/faults/schedule.h"
#include "tests/core/faults/seeds.h"

namespace tfmpi {
namespace {

// The engines run on one thread: nothing for ThreadSanitizer, which does not know such stacks.
#if !defined(__SANITIZE_THREAD__)

TEST(SchedulesTest, EveryRankEndsRightlyOrWithAnError) { EXPECT_EQ(RunSeeds(0, SCHEDULES), ""); }

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
