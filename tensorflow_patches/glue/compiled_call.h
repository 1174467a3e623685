// The custom call by which a compiled cluster averages tensors over the ranks.
//
// Operands: tensors, this rank's weight (a float32 scalar), a float32 scalar that only orders
// calls. Results: the averages, the scalar for the next call. Attribute "names": the names of the
// engine's requests, separated. XLA calls it on a thread of its own, which it gives back at once.

#ifndef TFMPI_GLUE_COMPILED_CALL_H_
#define TFMPI_GLUE_COMPILED_CALL_H_

#include "absl/status/status.h"

namespace tfmpi {

inline constexpr char kCompiledAverage[] = "tfmpi_average";
inline constexpr char kNameSeparator[] = "\n";

// Makes the call known to XLA for the CPU, once.
absl::Status RegisterCompiledAverage();

}  // namespace tfmpi

#endif  // TFMPI_GLUE_COMPILED_CALL_H_
