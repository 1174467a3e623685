// The custom calls by which a compiled cluster averages over the ranks.
//
// Operands: values and indices of sparse gradients, as many as the int64 attribute "slices" says,
// dense tensors, this rank's weight (a float32 scalar), a float32 scalar that only orders calls.
// Results: the averages, those of dense tensors in their memory, the scalar for the next call, and,
// if there are sparse gradients, how many rows each has, int64. Shapes are static, so the results
// of a sparse gradient have room for the rows of all ranks; the indices that are left over are -1,
// the values anything. Attribute "names": the names of the engine's requests, separated, one per
// gradient. XLA calls on a thread of its own, which the call gives back at once.
//
// kCompiledRest makes zeros of the values that are left over. Operands: the values, how many rows
// they have, as an int64 tensor of one element. Result: the values, in their memory.
//
// kCompiledScatter adds rows, times a factor, to those of a table. Operands: the table, indices,
// rows, the factor, a scalar of their dtype. Result: the table, in its memory. An index that is in
// no table is left out.

#ifndef TFMPI_GLUE_XLA_COMPILED_CALL_H_
#define TFMPI_GLUE_XLA_COMPILED_CALL_H_

#include <string_view>

#include "absl/status/status.h"

namespace tfmpi {

inline constexpr std::string_view kCompiledAverage = "tfmpi_average";
inline constexpr std::string_view kCompiledRest = "tfmpi_clear_rest";
inline constexpr std::string_view kCompiledScatter = "tfmpi_scatter_rows";
inline constexpr char kNameSeparator[] = "\n";

// Makes the calls known to XLA for the CPU, once.
absl::Status RegisterCompiledCalls();

}  // namespace tfmpi

#endif  // TFMPI_GLUE_XLA_COMPILED_CALL_H_
