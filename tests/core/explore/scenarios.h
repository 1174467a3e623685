// Scenarios for the explorer: each mechanism of the agreement alone, and some together.

#ifndef TFMPI_TESTS_CORE_EXPLORE_SCENARIOS_H_
#define TFMPI_TESTS_CORE_EXPLORE_SCENARIOS_H_

#include <vector>

#include "tests/core/explore/explorer.h"

namespace tfmpi {

// Small enough to be explored completely in seconds each.
std::vector<Scenario> QuickScenarios();
// Each deliberate bug (BUILD.bazel) is found by one of these.
std::vector<Scenario> MutantScenarios();
// The same with more ranks or tensors, or with waits that may time out at any moment.
std::vector<Scenario> FullScenarios();

}  // namespace tfmpi

#endif  // TFMPI_TESTS_CORE_EXPLORE_SCENARIOS_H_
