// An extra: the decorated kernel of an Apply op whose gradient is an average and whose variable and
// slots were synchronized when it was made. Nothing is left but the stock kernel, on the executor's
// own thread. An ApplyKernel would do; but to TensorFlow's executor it is asynchronous, which costs
// a model of many small variables more than updating them.
//
// Made by the decorating factory (registration/decorators.cc) in place of an optimizer op's stock
// kernel, which it owns. TensorFlow calls Compute on an inter-op thread.

#ifndef TFMPI_GLUE_EXTRAS_SYNCHRONOUS_UPDATE_H_
#define TFMPI_GLUE_EXTRAS_SYNCHRONOUS_UPDATE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow_patches/glue/variables/synchronized_variables.h"

namespace tfmpi {

class SynchronousUpdate : public tensorflow::OpKernel {
 public:
  // Whether the gradient is an average, Python has said what the variable and its slots are, and
  // all of them are synchronized. A step that then meets one which is not ends with an error.
  static bool Serves(const tensorflow::OpKernelConstruction& construction);

  // `gradient`: the name of the stock kernel's input.
  SynchronousUpdate(tensorflow::OpKernelConstruction* construction, const std::string& gradient,
                    std::unique_ptr<tensorflow::OpKernel> stock);

  // Optimizer ops run by such kernels so far.
  static int64_t Updated();

  void Compute(tensorflow::OpKernelContext* context) override;

 private:
  absl::Status Synchronize(tensorflow::OpKernelContext* context);

  const std::unique_ptr<tensorflow::OpKernel> stock_;
  int gradient_ = -1;         // input index
  std::string ref_variable_;  // the variable's graph name, when it is a ref
  std::string request_suffix_;
  SynchronizedVariables synchronized_;
};

}  // namespace tfmpi

#endif  // TFMPI_GLUE_EXTRAS_SYNCHRONOUS_UPDATE_H_
