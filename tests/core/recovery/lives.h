// A job whose ranks die as its seed determines, and a check of what must be true for the survivors.
//
//   LIVES_SEED=N, in the environment of lives_test, repeats one.

#ifndef TFMPI_TESTS_CORE_RECOVERY_LIVES_H_
#define TFMPI_TESTS_CORE_RECOVERY_LIVES_H_

#include <cstdint>
#include <string>

namespace tfmpi {

struct LivesResult {
  std::string wrong;  // "" if everything is correct
  int deaths = 0;
  int groups = 0;     // formed by ranks after the first one
  int passed_on = 0;  // regroupings in which some ranks had results that others lacked
  int redone = 0;     // averages over a group other than the first
};

// Each request of a survivor ends once, with ok; its result has the same bits on all survivors, and
// is that of one group, with each rank's data multiplied by its weight in it.
LivesResult RunLives(uint64_t seed);

}  // namespace tfmpi

#endif  // TFMPI_TESTS_CORE_RECOVERY_LIVES_H_
