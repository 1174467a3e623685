// The custom calls by which a compiled cluster averages over the ranks.
//
// Operands: tensors, this rank's weight (a float32 scalar), a float32 scalar that only orders
// calls. Results: the averages, in the tensors' memory, and the scalar for the next call. Attribute
// "names": the names of the engine's requests, separated. XLA calls them on a thread of its own,
// which they give back at once.
//
// The tensors of kCompiledSlices are the values and indices of a sparse gradient. Shapes are
// static, so both have room for the rows of all ranks: this rank's are the first "rows", an int64
// attribute; what is left over at the end is rows of zeros for an index that is there anyway.

#ifndef TFMPI_GLUE_COMPILED_CALL_H_
#define TFMPI_GLUE_COMPILED_CALL_H_

#include "absl/status/status.h"

namespace tfmpi {

inline constexpr char kCompiledAverage[] = "tfmpi_average";
inline constexpr char kCompiledSlices[] = "tfmpi_average_slices";
inline constexpr char kNameSeparator[] = "\n";

// Makes the calls known to XLA for the CPU, once.
absl::Status RegisterCompiledCalls();

}  // namespace tfmpi

#endif  // TFMPI_GLUE_COMPILED_CALL_H_
