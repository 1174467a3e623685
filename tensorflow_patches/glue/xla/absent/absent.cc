// Replaces the other files of xla/ for TensorFlow before 2.20, whose wheel lacks XLA's headers for
// custom calls: averages in compiled steps fail with an error.

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tensorflow_patches/glue/xla/compiled_average.h"
#include "tensorflow_patches/glue/xla/compiled_scatter.h"

namespace tfmpi {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;

void Refuse(OpKernelContext* context, const tensorflow::NodeDef& node) {
  context->SetStatus(absl::UnimplementedError(absl::StrCat(
      "averaging over ranks in a compiled step needs TensorFlow 2.20 or newer, and '", node.name(),
      "' (", node.op(), ") is in one. Set jit_compile=False, or run with TF_MPI_ENABLE=0")));
}

}  // namespace

bool AveragesInCompiledSteps() { return false; }

CompiledAverageKernel::CompiledAverageKernel(OpKernelConstruction* construction)
    : OpKernel(construction) {}

void CompiledAverageKernel::Compute(OpKernelContext* context) { Refuse(context, def()); }

bool CompiledAverageKernel::HasRows(const tensorflow::NodeDef& node) {
  return node.attr().count("_tf_mpi_rows") != 0;
}

CompiledApplyKernel::CompiledApplyKernel(OpKernelConstruction* construction, const ApplyOp& op,
                                         std::unique_ptr<tensorflow::OpKernel> stock)
    : OpKernel(construction), stock_(std::move(stock)), node_(construction, op, *stock_) {}

void CompiledApplyKernel::Compute(OpKernelContext* context) { Refuse(context, def()); }

// Only an extra: the stock kernel is enough.
CompiledScatter::CompiledScatter(OpKernelConstruction* construction,
                                 std::unique_ptr<tensorflow::OpKernel> stock)
    : OpKernel(construction), stock_(std::move(stock)) {}

void CompiledScatter::Compute(OpKernelContext* context) { stock_->Compute(context); }

}  // namespace tfmpi
