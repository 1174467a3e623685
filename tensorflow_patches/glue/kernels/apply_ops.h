// The optimizer ops of TensorFlow, and which input of each is the gradient.
//
// A test (tests/tf/kernels/test_apply_ops.py) compares this table with TensorFlow's registry and
// fails when TensorFlow gains an Apply op that the table lacks. Constant data, read on any thread.

#ifndef TFMPI_GLUE_KERNELS_APPLY_OPS_H_
#define TFMPI_GLUE_KERNELS_APPLY_OPS_H_

#include <string_view>
#include <vector>

namespace tfmpi {

struct ApplyOp {
  std::string_view name;      // of the op
  std::string_view gradient;  // the name of its gradient input
  bool sparse;                // the gradient is a set of rows
};

// Null if it is not an optimizer op.
const ApplyOp* FindApplyOp(std::string_view name);
const std::vector<ApplyOp>& AllApplyOps();

}  // namespace tfmpi

#endif  // TFMPI_GLUE_KERNELS_APPLY_OPS_H_
