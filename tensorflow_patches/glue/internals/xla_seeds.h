#ifndef TFMPI_GLUE_INTERNALS_XLA_SEEDS_H_
#define TFMPI_GLUE_INTERNALS_XLA_SEEDS_H_

#include <cstdint>

namespace tfmpi {

// From now on the seeds of compiled functions follow from `first`, which is the same on all ranks.
// 0: TensorFlow's own seeds. Any thread.
void SeedXla(uint32_t first);

}  // namespace tfmpi

#endif  // TFMPI_GLUE_INTERNALS_XLA_SEEDS_H_
