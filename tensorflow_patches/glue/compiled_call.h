// The custom calls by which a compiled cluster averages over the ranks.
//
// Operands: tensors, this rank's weight (a float32 scalar), a float32 scalar that only orders
// calls. Results: the averages, in the tensors' memory, and the scalar for the next call. Attribute
// "names": the names of the engine's requests, separated. XLA calls them on a thread of its own,
// which they give back at once.
//
// The tensors of kCompiledSlices are the values and indices of a sparse gradient. Shapes are
// static, so both have room for the rows of all ranks: this rank's are the first "rows", an int64
// attribute; what is left over at the end is rows of zeros for the index -1.
//
// kCompiledScatter adds rows to those of a table, or subtracts them ("subtract"). Operands: the
// table, indices, rows. Result: the table, in its memory. An index that is in no table is left out.

#ifndef TFMPI_GLUE_COMPILED_CALL_H_
#define TFMPI_GLUE_COMPILED_CALL_H_

#include <string_view>

#include "absl/status/status.h"

namespace tfmpi {

inline constexpr std::string_view kCompiledAverage = "tfmpi_average";
inline constexpr std::string_view kCompiledSlices = "tfmpi_average_slices";
inline constexpr std::string_view kCompiledScatter = "tfmpi_scatter_rows";
inline constexpr char kNameSeparator[] = "\n";

// Makes the calls known to XLA for the CPU, once.
absl::Status RegisterCompiledCalls();

}  // namespace tfmpi

#endif  // TFMPI_GLUE_COMPILED_CALL_H_
