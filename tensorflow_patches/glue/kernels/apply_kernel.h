// The decorated kernel: averages its gradient over the ranks, unless that was done before, then
// runs the stock kernel on the average.
//
// Made by the decorating factory (registration/decorators.cc) in place of an optimizer op's stock
// kernel, which it owns. TensorFlow calls ComputeAsync on an inter-op thread; the engine calls back
// on the communication thread, and the stock kernel runs on TensorFlow's own runner.

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

class ApplyKernel : public tensorflow::AsyncOpKernel {
 public:
  // `op` is dense.
  ApplyKernel(tensorflow::OpKernelConstruction* construction, const ApplyOp& op,
              std::unique_ptr<tensorflow::OpKernel> stock);

  void ComputeAsync(tensorflow::OpKernelContext* context, DoneCallback done) override;

  // Optimizer ops run by the process so far, whoever averaged their gradients.
  static int64_t Applied();
  static void CountApplied();
  // The gradients of optimizer ops that run eagerly on this thread are averages already, from now
  // on. Returns what it was before.
  static bool SetThreadAveraged(bool averaged);
  static bool ThreadAveraged();

 private:
  class Step;

  std::unique_ptr<tensorflow::OpKernel> stock_;
  int gradient_ = -1;         // input index
  std::string ref_variable_;  // the variable's graph name, when it is a ref
  std::string request_suffix_;
  bool averaged_ = false;
  SynchronizedVariables synchronized_;
};

// What the Apply kernels, this, the sparse and the compiled one, know from a node.
// " (ApplyAdam)", also for its sparse form: tells apart two optimizers of one variable; the second
// and further Apply ops of one kind on one variable of one graph carry their number.
std::string RequestSuffix(const tensorflow::NodeDef& node);
// Its gradient is an average already.
bool IsAveraged(const tensorflow::NodeDef& node);

// Runs the stock kernel in `context`, its own or one that has its inputs.
void RunStock(tensorflow::OpKernel* stock, tensorflow::OpKernelContext* context);
// Runs the stock kernel in `context`, which is another kernel's: it sees that one's inputs, but
// these tensors as the inputs of these numbers.
void RunOnInputs(tensorflow::OpKernel* stock, tensorflow::OpKernelContext* context,
                 std::initializer_list<std::pair<int, tensorflow::Tensor*>> replaced_inputs);
// Of one input, the gradient.
void RunOnGradient(tensorflow::OpKernel* stock, tensorflow::OpKernelContext* context, int index,
                   tensorflow::Tensor* gradient);

// Stops what this release cannot keep synchronized, with an error that names the op and the way
// out.
class RefusingKernel : public tensorflow::OpKernel {
 public:
  RefusingKernel(tensorflow::OpKernelConstruction* construction, std::string reason);
  void Compute(tensorflow::OpKernelContext* context) override;

 private:
  std::string reason_;
};

}  // namespace tfmpi

#endif  // TFMPI_GLUE_KERNELS_APPLY_KERNEL_H_
