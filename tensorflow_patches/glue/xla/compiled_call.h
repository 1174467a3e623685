// The custom calls by which a compiled step averages over the ranks.
//
// kCompiledAverage. Operands: of each sparse gradient the values, then the indices; the dense
// tensors; this rank's weight (a float32 scalar); a float32 scalar that only orders calls. Results:
// the averages, those of dense tensors in the operands' memory; the scalar for the next call; with
// sparse gradients, an int64 vector: how many rows of each are used. Attributes: "num_sparse",
// int64, the number of sparse gradients; "duplicates", a value of enum Duplicates; "names", a name
// per gradient, the sparse ones first, joined by kNameSeparator.
//
// Shapes are static, so the results of a sparse gradient have room for the rows that are expected
// of all ranks (RowsForCapacity, compiled_average.cc); the call fails if there are more. Unused
// indices are -1; unused values are undefined on the CPU, 0 on a GPU.
//
// On the CPU, XLA makes the call on a thread of its own, and the call returns at once. On a GPU,
// the thread that enqueues the step makes it, and it returns when the result is enqueued.
//
// kZeroUnusedRows zeroes the unused values, unless on a GPU, where they are 0 already. Operands:
// the values, and how many of their rows are used, an int64 tensor of one element. Result: the
// values, in the operand's memory; if XLA gives the result other memory, they are copied.

#ifndef TFMPI_GLUE_XLA_COMPILED_CALL_H_
#define TFMPI_GLUE_XLA_COMPILED_CALL_H_

#include <string_view>

#include "absl/status/status.h"
#include "xla/ffi/api/c_api.h"

namespace tfmpi {

inline constexpr std::string_view kCompiledAverage = "tfmpi_average";
inline constexpr std::string_view kZeroUnusedRows = "tfmpi_zero_unused_rows";
inline constexpr char kNameSeparator[] = "\n";

// XLA's platform names.
inline constexpr std::string_view kHost = "Host", kCuda = "CUDA";

// Registers the calls with XLA for both platforms, once.
absl::Status RegisterCompiledCalls();
absl::Status RegisterCompiledCall(std::string_view name, std::string_view platform,
                                  XLA_FFI_Handler* handler);

}  // namespace tfmpi

#endif  // TFMPI_GLUE_XLA_COMPILED_CALL_H_
