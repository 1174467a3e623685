// Every order in which 2 or 3 ranks can do what a scenario prescribes.
//
// Built with MOST_STATES, and with FULL for the larger scenarios; with MUTANT the product has a bug
// that some scenario must find.

#include <cstdio>

#include "gtest/gtest.h"
#include "tests/core/explore/scenarios.h"

#ifndef MOST_STATES
#define MOST_STATES 1'000'000
#endif

namespace tfmpi {
namespace {

// The engines run on one thread, so ThreadSanitizer, which does not support such stacks, is not
// needed.
#if !defined(__SANITIZE_THREAD__)

std::string Print(const Scenario& scenario, const Exploration& exploration) {
  char text[400];
  std::snprintf(text, sizeof text, "%s: %llu states, %llu runs (%llu to the end), %llu turns%s",
                scenario.name.c_str(), static_cast<unsigned long long>(exploration.states),
                static_cast<unsigned long long>(exploration.runs),
                static_cast<unsigned long long>(exploration.to_the_end),
                static_cast<unsigned long long>(exploration.turns),
                exploration.complete ? ", all" : "");
  std::printf("%s\n", text);
  std::fflush(stdout);
  return text;
}

#if defined(MUTANT)

TEST(MutantTest, IsFound) {
  for (const Scenario& scenario : MutantScenarios()) {
    const Exploration exploration = Explore(scenario, MOST_STATES);
    Print(scenario, exploration);
    if (exploration.wrong.empty()) continue;
    std::printf("found: %s\n", exploration.wrong.c_str());
    EXPECT_EQ(Replay(scenario, exploration.ways), exploration.wrong);
    return;
  }
  FAIL() << "no scenario has found it";
}

#else

class ExploreTest : public ::testing::TestWithParam<Scenario> {};

TEST_P(ExploreTest, NothingIsWrong) {
  const Exploration exploration = Explore(GetParam(), MOST_STATES);
  const std::string text = Print(GetParam(), exploration);
  EXPECT_EQ(exploration.wrong, "") << text;
  EXPECT_TRUE(exploration.complete) << text;
}

std::string NumberOf(const ::testing::TestParamInfo<Scenario>& info) {
  return std::to_string(info.index);
}

#if defined(FULL)
INSTANTIATE_TEST_SUITE_P(Full, ExploreTest, ::testing::ValuesIn(FullScenarios()), NumberOf);
#else
INSTANTIATE_TEST_SUITE_P(Quick, ExploreTest, ::testing::ValuesIn(QuickScenarios()), NumberOf);
#endif

#endif  // MUTANT
#endif  // __SANITIZE_THREAD__

}  // namespace
}  // namespace tfmpi
