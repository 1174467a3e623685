// Adds rows of an average to their variable inside an XLA cluster on the CPU.
//
// An extra. XLA's scatter is a loop that spends as much time on a row in the unused capacity, which
// has the index -1, as on a real one. Created and run like the kernels of xla/compiled_average.h.

#ifndef TFMPI_GLUE_XLA_COMPILED_SCATTER_H_
#define TFMPI_GLUE_XLA_COMPILED_SCATTER_H_

#include <memory>

#include "tensorflow/core/framework/op_kernel.h"

namespace tfmpi {

// ResourceScatterAdd and ResourceScatterSub: for rows of an average a custom call updates the
// variable, for all others the stock kernel.
class CompiledScatter : public tensorflow::OpKernel {
 public:
  CompiledScatter(tensorflow::OpKernelConstruction* construction,
                  std::unique_ptr<tensorflow::OpKernel> stock);
  void Compute(tensorflow::OpKernelContext* context) override;

 private:
  const std::unique_ptr<tensorflow::OpKernel> stock_;
};

}  // namespace tfmpi

#endif  // TFMPI_GLUE_XLA_COMPILED_SCATTER_H_
