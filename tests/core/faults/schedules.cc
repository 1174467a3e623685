// Runs schedules by their seeds (schedule.h) and prints which went wrong.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tests/core/faults/schedule.h"
#include "tests/core/faults/seeds.h"

namespace {

bool Read(const char* argument, const char* name, uint64_t* value) {
  const size_t length = std::strlen(name);
  if (std::strncmp(argument, name, length) != 0) return false;
  *value = std::strtoull(argument + length, nullptr, 10);
  return true;
}

using Make = tfmpi::Plan (*)(uint64_t);

int RunOne(uint64_t seed, Make make) {
  const tfmpi::Plan plan = make(seed);
  std::printf("%s\n", plan.Describe().c_str());
  const tfmpi::ScheduleResult outcome = tfmpi::RunPlan(plan);
  for (size_t rank = 0; rank < outcome.endings.size(); ++rank) {
    std::printf("rank %d: %s\n", static_cast<int>(rank), outcome.endings[rank].c_str());
  }
  std::printf("%s; %llu turns; %.3f s from the fault to the end; %s\n",
              outcome.struck ? "the fault happened" : "no fault",
              static_cast<unsigned long long>(outcome.turns), outcome.seconds,
              outcome.wrong.empty() ? "as it must be" : ("WRONG: " + outcome.wrong).c_str());
  return outcome.wrong.empty() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  uint64_t seed = 0, first = 0, count = 1000;
  bool one = false;
  Make make = &tfmpi::MakePlan;
  for (int i = 1; i < argc; ++i) {
    if (Read(argv[i], "--seed=", &seed)) {
      one = true;
    } else if (std::strcmp(argv[i], "--tree") == 0) {
      make = &tfmpi::MakeTreePlan;
    } else if (!Read(argv[i], "--count=", &count) && !Read(argv[i], "--first=", &first)) {
      std::fprintf(stderr,
                   "usage: schedules [--tree] --seed=N | [--tree] [--first=N] [--count=N]\n");
      return 2;
    }
  }
  if (one) return RunOne(seed, make);
  return tfmpi::RunSeeds(first, count, make).empty() ? 0 : 1;
}
