#include "tests/core/faults/seeds.h"

#include <algorithm>
#include <cstdio>
#include <ctime>

namespace tfmpi {
namespace {

struct Tally {
  int schedules = 0;
  int struck = 0;
  int failed = 0;  // schedules that ended with errors
  double latest = 0;
};

double ProcessSeconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

}  // namespace

std::string RunSeeds(uint64_t first, uint64_t count, Plan (*make)(uint64_t)) {
  constexpr int kMaxShown = 20;
  const double begin = ProcessSeconds();
  Tally tallies[kNumFaults];
  std::string first_wrong;
  int wrong = 0;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    const Plan plan = make(seed);
    const ScheduleResult outcome = RunPlan(plan);
    Tally& tally = tallies[static_cast<size_t>(plan.fault)];
    ++tally.schedules;
    tally.struck += outcome.struck;
    tally.failed += outcome.failed != 0;
    tally.latest = std::max(tally.latest, outcome.seconds);
    if (outcome.wrong.empty()) continue;
    const std::string text = outcome.wrong + " (" + plan.Describe() + ")";
    if (first_wrong.empty()) first_wrong = text;
    if (++wrong <= kMaxShown) std::printf("WRONG: %s\n", text.c_str());
  }
  const double seconds = ProcessSeconds() - begin;
  for (int fault = 0; fault < kNumFaults; ++fault) {
    const Tally& tally = tallies[fault];
    std::printf(
        "%-18s %6d schedules, happened in %5d, %5d ended with errors, the last %.1f s after\n",
        Name(static_cast<Fault>(fault)), tally.schedules, tally.struck, tally.failed, tally.latest);
  }
  std::printf("%llu schedules, %d wrong, %.0f a minute\n", static_cast<unsigned long long>(count),
              wrong, static_cast<double>(count) * 60 / std::max(seconds, 1e-3));
  std::fflush(stdout);
  return first_wrong;
}

}  // namespace tfmpi
