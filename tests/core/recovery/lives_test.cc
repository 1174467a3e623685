// LIVES jobs whose ranks die, one after another.

#include "tests/core/recovery/lives.h"

#include <cstdio>
#include <cstdlib>

#include "gtest/gtest.h"

namespace tfmpi {
namespace {

// The engines run on one thread, so ThreadSanitizer, which does not support such stacks, is not
// needed.
#if !defined(__SANITIZE_THREAD__)

TEST(LivesTest, ThoseThatAreLeftGoOnAlike) {
  const char* const one = std::getenv("LIVES_SEED");  // to play one again
  const uint64_t first = one != nullptr ? std::strtoull(one, nullptr, 10) : 0;
  const uint64_t count = one != nullptr ? 1 : LIVES;
  int deaths = 0, groups = 0, passed_on = 0, redone = 0, wrong = 0;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    const LivesResult outcome = RunLives(seed);
    deaths += outcome.deaths;
    groups += outcome.groups;
    passed_on += outcome.passed_on;
    redone += outcome.redone;
    if (outcome.wrong.empty()) continue;
    ++wrong;
#if !defined(MUTANT)
    if (wrong <= 20) ADD_FAILURE() << "seed " << seed << ": " << outcome.wrong;
#endif
  }
  std::printf(
      "%llu jobs, %d deaths, %d groups after the first, results passed on in %d of them, "
      "%d averages over those left, %d wrong\n",
      static_cast<unsigned long long>(count), deaths, groups, passed_on, redone, wrong);
#if defined(MUTANT)
  EXPECT_GT(wrong, 0);
  return;
#endif
  if (one != nullptr) return;
  // Else nothing was tried.
  EXPECT_GT(deaths, static_cast<int>(count) / 2);
  EXPECT_GT(groups, static_cast<int>(count) / 2);
  EXPECT_GT(passed_on, static_cast<int>(count) / 20);
  EXPECT_GT(redone, static_cast<int>(count) / 2);
}

#endif

}  // namespace
}  // namespace tfmpi
