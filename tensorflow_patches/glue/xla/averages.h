// State that the kernels of one computation share while it is compiled.

#ifndef TFMPI_GLUE_XLA_AVERAGES_H_
#define TFMPI_GLUE_XLA_AVERAGES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_base.h"
#include "xla/hlo/builder/xla_builder.h"

namespace tfmpi {

// `last`: a number that the last call emitted so far returns. The next call takes it, so that XLA
// runs the calls one after another in graph order, which is the same on all ranks. XLA's own order
// depends on shapes, and a call that waits may hold up all later ones.
class Averages : public tensorflow::ResourceBase {
 public:
  struct Rows {
    xla::XlaOp values;   // with zeros in the unused capacity
    xla::XlaOp indices;  // distinct if duplicates are summed; -1 in the unused capacity
    xla::XlaOp written;  // as the call wrote them: undefined in the unused capacity
  };

  std::string DebugString() const override { return "averages"; }
  xla::XlaOp last;
  std::vector<Rows> rows;  // the averages of sparse gradients
};

// Of the computation that is being compiled. Returns a reference, which the caller must release.
// Defined in compiled_average.cc.
absl::StatusOr<Averages*> AveragesOf(tensorflow::OpKernelContext* context,
                                     xla::XlaBuilder* builder);

}  // namespace tfmpi

#endif  // TFMPI_GLUE_XLA_AVERAGES_H_
