// The state of an engine as a number: two engines of one rank with equal numbers continue
// identically.
//
// Call it between two turns of the loop, when nothing is half done. A new field of the product that
// affects decisions must be added: otherwise different states count as one, and what follows the
// second one is not explored.

#ifndef TFMPI_TESTS_CORE_SIMULATION_INSPECTOR_H_
#define TFMPI_TESTS_CORE_SIMULATION_INSPECTOR_H_

#include <cstdint>

#include "tensorflow_patches/core/engine/engine.h"

namespace tfmpi {

class Inspector {
 public:
  static uint64_t StateOf(const Engine& engine);
  static uint64_t StateOf(const Coordinator& coordinator) { return Of(coordinator); }
  // A hash of what other threads have requested since its last turn; call it at any time.
  static uint64_t RequestsOf(const Engine& engine);

 private:
  static uint64_t Of(const NameTable& names);
  static uint64_t Of(const ResponseBypass& bypass);
  static uint64_t Of(const Coordinator& coordinator);
};

// Mixes `what` into a hash.
inline uint64_t Mix(uint64_t hash, uint64_t what) {
  hash ^= what + 0x9e3779b97f4a7c15u + (hash << 6) + (hash >> 2);
  hash *= 0xff51afd7ed558ccdu;
  return hash ^ (hash >> 33);
}

}  // namespace tfmpi

#endif  // TFMPI_TESTS_CORE_SIMULATION_INSPECTOR_H_
