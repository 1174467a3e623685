// An extra: the decorated kernel of a dense optimizer op whose gradient is an average, and whose
// variable and slots were synchronized before the kernel was created. It only runs the stock
// kernel, on the executor's own thread. An ApplyKernel would also be correct, but the executor runs
// it asynchronously, which costs more than the updates in a model with many small variables.
//
// Created by the decorating factory (registration/decorators.cc) instead of an optimizer op's stock
// kernel, which it owns. TensorFlow calls Compute on an inter-op thread.

#ifndef TFMPI_GLUE_EXTRAS_SYNCHRONOUS_UPDATE_H_
#define TFMPI_GLUE_EXTRAS_SYNCHRONOUS_UPDATE_H_

#include <cstdint>
#include <memory>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow_patches/glue/kernels/apply_kernel.h"
#include "tensorflow_patches/glue/variables/synchronized_variables.h"

namespace tfmpi {

class SynchronousUpdate : public tensorflow::OpKernel {
 public:
  // Whether the gradient is an average, Python has named the variable and its slots (kStates in
  // initial_broadcast.h), and all of them are synchronized. If a later step passes any that are
  // not, that step fails.
  static bool Serves(const tensorflow::OpKernelConstruction& construction);

  SynchronousUpdate(tensorflow::OpKernelConstruction* construction, const ApplyOp& op,
                    std::unique_ptr<tensorflow::OpKernel> stock);

  // The number of optimizer ops run by such kernels so far.
  static int64_t Updated();

  void Compute(tensorflow::OpKernelContext* context) override;

 private:
  absl::Status Synchronize(tensorflow::OpKernelContext* context);

  const std::unique_ptr<tensorflow::OpKernel> stock_;
  const ApplyNode node_;
  SynchronizedVariables synchronized_;
};

}  // namespace tfmpi

#endif  // TFMPI_GLUE_EXTRAS_SYNCHRONOUS_UPDATE_H_
