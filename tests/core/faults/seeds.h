// Many schedules, one after another.

#ifndef TFMPI_TESTS_CORE_FAULTS_SEEDS_H_
#define TFMPI_TESTS_CORE_FAULTS_SEEDS_H_

#include <cstdint>
#include <string>

#include "tests/core/faults/schedule.h"

namespace tfmpi {

// Prints a summary, and each schedule that went wrong. Returns the first of these, or "".
// `make`: the plan of a seed.
std::string RunSeeds(uint64_t first, uint64_t count, Plan (*make)(uint64_t) = &MakePlan);

}  // namespace tfmpi

#endif  // TFMPI_TESTS_CORE_FAULTS_SEEDS_H_
