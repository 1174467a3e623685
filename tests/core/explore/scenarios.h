// What ranks may do while they agree, each mechanism on its own and some together.

#ifndef TFMPI_TESTS_CORE_EXPLORE_SCENARIOS_H_
#define TFMPI_TESTS_CORE_EXPLORE_SCENARIOS_H_

#include <vector>

#include "tests/core/explore/explorer.h"

namespace tfmpi {

// Small enough to be explored whole in seconds each.
std::vector<Scenario> QuickScenarios();
// One of them finds each bug that is put in on purpose (BUILD.bazel).
std::vector<Scenario> MutantScenarios();
// The same with more ranks, tensors, or waits whose time is over at any moment.
std::vector<Scenario> FullScenarios();

}  // namespace tfmpi

#endif  // TFMPI_TESTS_CORE_EXPLORE_SCENARIOS_H_
