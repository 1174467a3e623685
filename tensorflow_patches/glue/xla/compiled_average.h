// The kernels that average over the ranks inside XLA clusters, on the CPU and on GPUs.
//
// The decorating factory (registration/decorators.cc) creates them for the device types XLA_CPU_JIT
// and XLA_GPU_JIT. Compute runs once per compilation, on the thread that compiles, and adds a
// custom call to the computation. compiled_call.cc executes that call in every step.

#ifndef TFMPI_GLUE_XLA_COMPILED_AVERAGE_H_
#define TFMPI_GLUE_XLA_COMPILED_AVERAGE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow_patches/glue/kernels/apply_kernel.h"
#include "tensorflow_patches/glue/kernels/average_kernel.h"

namespace tfmpi {

// False if this TensorFlow lacks what these kernels need; they then only report that (absent/).
bool AveragesInCompiledSteps();

// A marked IdentityN (average_kernel.h). Its first tensors may be the values and indices of sparse
// gradients, with room for the rows of all ranks (compiled_call.h).
class CompiledAverageKernel : public tensorflow::OpKernel {
 public:
  explicit CompiledAverageKernel(tensorflow::OpKernelConstruction* construction);
  void Compute(tensorflow::OpKernelContext* context) override;

  // Whether an IdentityN has sparse gradients: then it was created for a compiled function.
  static bool HasRows(const tensorflow::NodeDef& node);

 private:
  std::vector<std::string> names_;  // by gradient, the sparse ones first
  std::vector<int64_t> rows_;  // of this rank, by sparse gradient; -1: derived from the capacity
  int64_t duplicates_ = 0;     // a value of enum Duplicates
};

// A dense optimizer op on a resource variable: the stock kernel emits the update, with the average.
// Python synchronizes the variable before the function is called.
class CompiledApplyKernel : public tensorflow::OpKernel {
 public:
  CompiledApplyKernel(tensorflow::OpKernelConstruction* construction, const ApplyOp& op,
                      std::unique_ptr<tensorflow::OpKernel> stock);
  void Compute(tensorflow::OpKernelContext* context) override;

 private:
  absl::Status EmitAverageOfGradient(tensorflow::OpKernelContext* context,
                                     tensorflow::Tensor* average);

  const std::unique_ptr<tensorflow::OpKernel> stock_;
  const ApplyNode node_;
};

}  // namespace tfmpi

#endif  // TFMPI_GLUE_XLA_COMPILED_AVERAGE_H_
