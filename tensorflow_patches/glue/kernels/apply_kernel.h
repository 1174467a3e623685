// The decorated kernel of an optimizer op: averages its gradient over the ranks, unless that has
// already been done, then runs the stock kernel on the average.
//
// Created by the decorating factory (registration/decorators.cc) instead of an optimizer op's stock
// kernel, which it owns. TensorFlow calls ComputeAsync on an inter-op thread. The stock kernel runs
// there if nothing has to be exchanged, else on TensorFlow's own runner after the exchange.

#ifndef TFMPI_GLUE_KERNELS_APPLY_KERNEL_H_
#define TFMPI_GLUE_KERNELS_APPLY_KERNEL_H_

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow_patches/glue/kernels/apply_ops.h"
#include "tensorflow_patches/glue/runtime/runtime.h"
#include "tensorflow_patches/glue/variables/synchronized_variables.h"

namespace tfmpi {

// Whether the gradient of an optimizer op is already an average.
bool IsAveraged(const tensorflow::NodeDef& node);

// What the kernels of an optimizer op read from its node.
struct ApplyNode {
  // Fails the construction if the stock kernel has no input with the name `op.gradient`.
  ApplyNode(tensorflow::OpKernelConstruction* construction, const ApplyOp& op,
            const tensorflow::OpKernel& stock);

  int gradient = -1;         // input index
  std::string ref_variable;  // the variable's graph name, if it is a ref
  // " (ApplyAdam)", also for the sparse form: distinguishes two optimizers of one variable. If a
  // graph has several optimizer ops of one kind for one variable, all but the first have a number.
  std::string request_suffix;
  bool averaged;  // IsAveraged
};

class ApplyKernel : public tensorflow::AsyncOpKernel {
 public:
  // `op` must be dense.
  ApplyKernel(tensorflow::OpKernelConstruction* construction, const ApplyOp& op,
              std::unique_ptr<tensorflow::OpKernel> stock);

  void ComputeAsync(tensorflow::OpKernelContext* context, DoneCallback done) override;

  // The number of optimizer ops run by decorated kernels so far; not those of compiled steps.
  static int64_t Applied();
  static void CountApplied();
  // Sets whether the gradients of optimizer ops that run eagerly on this thread from now on are
  // already averages. Returns the previous value.
  static bool SetThreadAveraged(bool averaged);
  static bool ThreadAveraged();

 private:
  class Step;

  const std::unique_ptr<tensorflow::OpKernel> stock_;
  const ApplyNode node_;
  SynchronizedVariables synchronized_;
};

// Runs the stock kernel in `context`, which belongs to it or to a kernel with the same inputs.
void RunStock(tensorflow::OpKernel* stock, tensorflow::OpKernelContext* context);
// Runs the stock kernel in `context`, which belongs to another kernel: it sees that kernel's
// inputs, with the inputs at these indices replaced by these tensors.
void RunOnInputs(tensorflow::OpKernel* stock, tensorflow::OpKernelContext* context,
                 std::initializer_list<std::pair<int, tensorflow::Tensor*>> replaced_inputs);

// Fails with `reason`, which names the op and a solution: for ops that would let ranks diverge.
class RefusingKernel : public tensorflow::OpKernel {
 public:
  RefusingKernel(tensorflow::OpKernelConstruction* construction, std::string reason);
  void Compute(tensorflow::OpKernelContext* context) override;

 private:
  std::string reason_;
};

}  // namespace tfmpi

#endif  // TFMPI_GLUE_KERNELS_APPLY_KERNEL_H_
