// What an engine knows, as a number: two engines of one rank with equal numbers go on alike.
//
// To be called between two turns of its loop, when nothing is half done. A field of the product
// that is new, and decides something, must be added: else states that differ count as one, and what
// comes after the second is not looked at.

#ifndef TFMPI_TESTS_CORE_SIMULATION_INSPECTOR_H_
#define TFMPI_TESTS_CORE_SIMULATION_INSPECTOR_H_

#include <cstdint>

#include "tensorflow_patches/core/engine/engine.h"

namespace tfmpi {

class Inspector {
 public:
  static uint64_t StateOf(const Engine& engine);
  static uint64_t StateOf(const Coordinator& coordinator) { return Of(coordinator); }
  // What other threads have asked of it since it last looked, at any time.
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
