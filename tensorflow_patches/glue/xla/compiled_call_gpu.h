// The custom calls of compiled_call.h on a GPU, where the host cannot read the operands.
//
// XLA's thread makes the call while it enqueues a step on `stream`, a CUstream. The call returns
// when the ranks have agreed and the result is enqueued; meanwhile the stream executes the work
// before it. Sparse gradients are copied to pinned memory, since their indices determine what is
// sent: for them the call waits for the stream, and zeroes the unused values itself.

#ifndef TFMPI_GLUE_XLA_COMPILED_CALL_GPU_H_
#define TFMPI_GLUE_XLA_COMPILED_CALL_GPU_H_

#include <string_view>

#include "absl/status/status.h"
#include "tensorflow_patches/core/reduction/sparse_rows.h"
#include "tensorflow_patches/glue/xla/operands.h"

namespace tfmpi {

// `joined`: the attribute "names".
absl::Status AverageOnStream(void* stream, const Operands& operands, std::string_view joined,
                             Duplicates duplicates);
// The values are already zeroed (Mirror::Return); copies them if XLA gave the result other memory.
absl::Status CopyValuesOnStream(void* stream, const Operand& values, const Operand& result);

}  // namespace tfmpi

#endif  // TFMPI_GLUE_XLA_COMPILED_CALL_GPU_H_
