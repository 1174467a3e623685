// Every order in which 3 ranks can agree on 3 tensors: agreement_model.h.
//
// Built with FULL or LARGE for larger scenarios; with MUTANT the product has a bug that one of them
// must find.

#include <cstdio>

#include "gtest/gtest.h"
#include "tests/core/explore/agreement_model.h"

namespace tfmpi {
namespace {

constexpr uint64_t kMaxStates = 60'000'000;

// Without FULL only those that together take seconds.
std::vector<AgreementScenario> Scenarios() {
  std::vector<AgreementScenario> scenarios;
  const auto add = [&](const char* name, int tensors, const auto& change) {
    AgreementScenario scenario;
    scenario.tensors = tensors;
    change(&scenario);
    scenario.name = std::string(name) + ": 3 ranks, " + std::to_string(tensors) + " tensors";
    scenarios.push_back(scenario);
  };
#if defined(LARGE)
  constexpr int kTensors = 3, kTensorsOfLarge = 3;
#elif defined(FULL)
  constexpr int kTensors = 3, kTensorsOfLarge = 2;
#else
  constexpr int kTensors = 2, kTensorsOfLarge = 2;
#endif
  for (int tensors = 2; tensors <= kTensors; ++tensors) {
    add("requests in any order", tensors, [](AgreementScenario*) {});
    add("an early end", tensors, [](AgreementScenario* one) { one->ends_early = true; });
    add("votes", tensors, [](AgreementScenario* one) { one->votes = true; });
    add("votes and an early end", tensors,
        [](AgreementScenario* one) { one->votes = one->ends_early = true; });
  }
  for (int tensors = 2; tensors <= kTensorsOfLarge; ++tensors) {
    add("a withdrawal", tensors, [](AgreementScenario* one) { one->withdraws = true; });
    add("an error", tensors, [](AgreementScenario* one) { one->differs = true; });
    add("votes and a withdrawal", tensors,
        [](AgreementScenario* one) { one->votes = one->withdraws = true; });
    add("votes and an error", tensors,
        [](AgreementScenario* one) { one->votes = one->differs = true; });
  }
  for (const bool enqueues : {false, true}) {
    add(enqueues ? "votes, twice, on GPUs" : "votes, twice", 2, [=](AgreementScenario* one) {
      one->votes = true;
      one->rounds = 2;
      one->enqueues = enqueues;
    });
  }
  add("votes and an early end, on GPUs", 2,
      [](AgreementScenario* one) { one->votes = one->ends_early = one->enqueues = true; });
  add("votes and a withdrawal, on GPUs", 2,
      [](AgreementScenario* one) { one->votes = one->withdraws = one->enqueues = true; });
  add("votes and an error, on GPUs", 2,
      [](AgreementScenario* one) { one->votes = one->differs = one->enqueues = true; });
  add("votes, a withdrawal and an early end", 2,
      [](AgreementScenario* one) { one->votes = one->withdraws = one->ends_early = true; });
#if defined(FULL) || defined(LARGE)
  add("votes, a withdrawal and an error", 2,
      [](AgreementScenario* one) { one->votes = one->withdraws = one->differs = true; });
#endif
  return scenarios;
}

AgreementExploration Explore(const AgreementScenario& scenario) {
  const AgreementExploration found = ExploreAgreement(scenario, kMaxStates);
  std::printf("%s: %llu states, %llu transitions%s\n", scenario.name.c_str(),
              static_cast<unsigned long long>(found.states),
              static_cast<unsigned long long>(found.transitions), found.complete ? ", all" : "");
  for (const std::string& step : found.way) std::printf("    %s\n", step.c_str());
  if (!found.wrong.empty()) std::printf("    %s\n", found.wrong.c_str());
  std::fflush(stdout);
  return found;
}

#if defined(MUTANT)

TEST(MutantTest, IsFound) {
  for (const AgreementScenario& scenario : Scenarios()) {
    if (!Explore(scenario).wrong.empty()) return;
  }
  FAIL() << "no scenario has found it";
}

#else

TEST(AgreementTest, NothingIsWrong) {
  uint64_t states = 0;
  for (const AgreementScenario& scenario : Scenarios()) {
    const AgreementExploration found = Explore(scenario);
    EXPECT_EQ(found.wrong, "") << scenario.name;
    EXPECT_TRUE(found.complete) << scenario.name;
    states += found.states;
  }
  std::printf("%llu states\n", static_cast<unsigned long long>(states));
}

#endif

}  // namespace
}  // namespace tfmpi
