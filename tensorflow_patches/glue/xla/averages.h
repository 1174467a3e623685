// What the kernels of one computation know of each other, while it is compiled.

#ifndef TFMPI_GLUE_XLA_AVERAGES_H_
#define TFMPI_GLUE_XLA_AVERAGES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_base.h"
#include "xla/hlo/builder/xla_builder.h"

namespace tfmpi {

// `last` is the last call of the computation: each takes a number that the one before it gives, so
// that XLA runs them one after another, in the order of the graph, which is the same on all ranks.
// Its own order depends on shapes, and a call that waits may hold up all that come after it.
class Averages : public tensorflow::ResourceBase {
 public:
  struct Rows {
    xla::XlaOp values;   // what the graph sees
    xla::XlaOp indices;  // distinct
    xla::XlaOp written;  // the same values, but that the rest of their room may hold anything
  };

  std::string DebugString() const override { return "the averages of a computation"; }
  xla::XlaOp last;
  std::vector<Rows> rows;  // the averages of sparse gradients
};

// Of the computation that is being compiled: a reference, which the caller gives up.
absl::StatusOr<Averages*> AveragesOf(tensorflow::OpKernelContext* context,
                                     xla::XlaBuilder* builder);

}  // namespace tfmpi

#endif  // TFMPI_GLUE_XLA_AVERAGES_H_
