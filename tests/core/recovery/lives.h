// A job whose ranks die, by its seed: who dies when, and what must hold of those that are left.
//
//   LIVES_SEED=N, in the environment of lives_test, plays one again.

#ifndef TFMPI_TESTS_CORE_RECOVERY_LIVES_H_
#define TFMPI_TESTS_CORE_RECOVERY_LIVES_H_

#include <cstdint>
#include <string>

namespace tfmpi {

struct LivesResult {
  std::string wrong;  // "" if all is as it must be
  int deaths = 0;
  int groups = 0;     // that ranks have met in after the first
  int passed_on = 0;  // meetings in which some had results that others had not
  int redone = 0;     // averages over a group that is not the first
};

// A survivor's requests each end once, and well; their results are the same to the bit on all that
// are left, and are those of one group, each rank's data counted by its weight among these.
LivesResult RunLives(uint64_t seed);

}  // namespace tfmpi

#endif  // TFMPI_TESTS_CORE_RECOVERY_LIVES_H_
