// Averages inside XLA clusters on the CPU: what the kernels emit while a cluster is compiled.
//
// Made by the decorating factories (interpose.cc) for kernels of device type XLA_CPU_JIT. Compute
// runs once per compilation, on the thread that compiles; it adds a custom call to the computation,
// which compiled_call.cc carries out at every step.

#ifndef TFMPI_GLUE_COMPILED_AVERAGE_H_
#define TFMPI_GLUE_COMPILED_AVERAGE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow_patches/glue/apply_ops.h"
#include "tensorflow_patches/glue/average_kernel.h"

namespace tfmpi {

// A marked IdentityN (average_kernel.h).
class CompiledAverageKernel : public tensorflow::OpKernel {
 public:
  explicit CompiledAverageKernel(tensorflow::OpKernelConstruction* construction);
  void Compute(tensorflow::OpKernelContext* context) override;

 private:
  AverageSpec spec_;
};

// A marked IdentityN of a sparse gradient (sparse_average_kernel.h) that was made for a compiled
// function: its values and indices have room for the rows of all ranks (compiled_call.h).
class CompiledSlicesKernel : public tensorflow::OpKernel {
 public:
  explicit CompiledSlicesKernel(tensorflow::OpKernelConstruction* construction);
  void Compute(tensorflow::OpKernelContext* context) override;

  // True for such an IdentityN.
  static bool IsMarked(const tensorflow::NodeDef& node);

 private:
  std::vector<std::string> names_;  // of the engine's request: one
  int64_t rows_ = 0;                // of this rank
};

// A dense optimizer op on a resource variable: the stock kernel emits the update by the average.
// Nothing here brings the variable in step: Python has, before the function was called.
class CompiledApplyKernel : public tensorflow::OpKernel {
 public:
  CompiledApplyKernel(tensorflow::OpKernelConstruction* construction, const ApplyOp& op,
                      std::unique_ptr<tensorflow::OpKernel> stock);
  void Compute(tensorflow::OpKernelContext* context) override;

 private:
  absl::Status EmitAverageOfGradient(tensorflow::OpKernelContext* context,
                                     tensorflow::Tensor* average);

  std::unique_ptr<tensorflow::OpKernel> stock_;
  int gradient_ = -1;  // input index
  std::string request_suffix_;
  bool averaged_ = false;
};

// ResourceScatterAdd and ResourceScatterSub. By the rows of an average (CompiledSlicesKernel) a
// call of ours updates the variable: XLA's loop takes each row, also those for the index -1, as
// long as computing one. By any others the stock kernel does.
class CompiledScatterKernel : public tensorflow::OpKernel {
 public:
  static bool Serves(const std::string& op);

  CompiledScatterKernel(tensorflow::OpKernelConstruction* construction,
                        std::unique_ptr<tensorflow::OpKernel> stock);
  void Compute(tensorflow::OpKernelContext* context) override;

 private:
  const std::unique_ptr<tensorflow::OpKernel> stock_;
};

}  // namespace tfmpi

#endif  // TFMPI_GLUE_COMPILED_AVERAGE_H_
