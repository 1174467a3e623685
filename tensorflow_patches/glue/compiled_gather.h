// Rows gathered inside XLA clusters on the CPU. Made and run as the kernels of compiled_average.h.

#ifndef TFMPI_GLUE_COMPILED_GATHER_H_
#define TFMPI_GLUE_COMPILED_GATHER_H_

#include <memory>
#include <string>

#include "tensorflow/core/framework/op_kernel.h"

namespace tfmpi {

// GatherV2 and ResourceGather. Rows of a large table are read by a call of ours, which asks for
// them ahead: XLA's loop waits for memory row by row, longer the more of the table other ranks'
// rows have pushed out of the caches. All else the stock kernel does.
class CompiledGatherKernel : public tensorflow::OpKernel {
 public:
  static bool Serves(const std::string& op);

  CompiledGatherKernel(tensorflow::OpKernelConstruction* construction,
                       std::unique_ptr<tensorflow::OpKernel> stock);
  void Compute(tensorflow::OpKernelContext* context) override;

 private:
  const std::unique_ptr<tensorflow::OpKernel> stock_;
};

}  // namespace tfmpi

#endif  // TFMPI_GLUE_COMPILED_GATHER_H_
