// Many schedules, one after the other.

#ifndef TFMPI_TESTS_CORE_FAULTS_SEEDS_H_
#define TFMPI_TESTS_CORE_FAULTS_SEEDS_H_

#include <cstdint>
#include <set>
#include <string>

namespace tfmpi {

// Prints what they were, and each that went wrong. Returns the first of these, or "". Leaves out
// those of `but`.
std::string RunSeeds(uint64_t first, uint64_t count, const std::set<uint64_t>& but = {});

}  // namespace tfmpi

#endif  // TFMPI_TESTS_CORE_FAULTS_SEEDS_H_
