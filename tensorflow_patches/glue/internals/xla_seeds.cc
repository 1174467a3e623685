// Makes compiled functions draw the same random numbers on all ranks.
//
// XLA ignores the seeds of TensorFlow's stateful random ops. TensorFlow gives each execution of a
// compiled function a new seed, from a counter that starts at a random number in each process. GPUs
// use that seed, and CPUs since TensorFlow 2.22. Ranks run the same functions in the same order, so
// it is enough that their counters start at the same number.

#include "tensorflow_patches/glue/internals/xla_seeds.h"

#include <dlfcn.h>

#include <atomic>

namespace tfmpi {
namespace {

std::atomic<uint32_t> g_next{0};  // odd, so it never becomes 0; 0: TensorFlow's own seeds

// The definition in libtensorflow_cc, which ours hides.
uint32_t StockSeed() {
  static const auto function =
      reinterpret_cast<uint32_t (*)()>(dlsym(RTLD_NEXT, "_ZN10tensorflow16GetXLARandomSeedEv"));
  return function();
}

// MurmurHash3's finalizer: consecutive numbers become unrelated ones.
uint32_t Mixed(uint32_t number) {
  number = (number ^ (number >> 16)) * 0x85ebca6bU;
  number = (number ^ (number >> 13)) * 0xc2b2ae35U;
  return number ^ (number >> 16);
}

}  // namespace

void SeedXla(uint32_t first) { g_next = first == 0 ? 0 : first | 1; }

}  // namespace tfmpi

namespace tensorflow {

// Declared in TensorFlow's tf2xla_util.h. Not 0, for which some backends of XLA draw zeros.
__attribute__((visibility("default"))) uint32_t GetXLARandomSeed() {
  uint32_t number = tfmpi::g_next;
  do {
    if (number == 0) return tfmpi::StockSeed();
  } while (!tfmpi::g_next.compare_exchange_weak(number, number + 2));
  return tfmpi::Mixed(number) | 1;
}

}  // namespace tensorflow
