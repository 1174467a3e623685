// An extra: the decorated kernel of ResourceScatterAdd, Sub and Update, with which Keras and
// tf_keras update the rows of an embedding.
//
// A stock scatter puts its variable into copy-on-read mode permanently: every op that reads all of
// it, like Keras's Embedding in each step, then copies the table. Here the variable keeps its mode,
// and is copied before a write if a previous read still holds it, as in a dense optimizer op. So
// this kernel locks the variable exclusively, while a stock scatter shares the lock with readers. A
// variable that another op has put into copy-on-read mode stays in it.
//
// Created by the decorating factory (registration/decorators.cc); owns the stock kernel. TensorFlow
// calls Compute on an inter-op thread.

#ifndef TFMPI_GLUE_EXTRAS_SCATTER_IN_PLACE_H_
#define TFMPI_GLUE_EXTRAS_SCATTER_IN_PLACE_H_

#include <memory>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_var.h"

namespace tfmpi {

class ScatterInPlace : public tensorflow::OpKernel {
 public:
  // Whether memcpy can copy values of the variable's type.
  static bool Serves(const tensorflow::OpKernelConstruction& construction);

  ScatterInPlace(tensorflow::OpKernelConstruction* construction,
                 std::unique_ptr<tensorflow::OpKernel> stock);

  void Compute(tensorflow::OpKernelContext* context) override;

 private:
  // Runs the stock kernel on the variable of `handle`, whose value is `table`.
  void Run(tensorflow::OpKernelContext* context, tensorflow::Tensor handle,
           const tensorflow::Tensor& table);

  const std::unique_ptr<tensorflow::OpKernel> stock_;
};

}  // namespace tfmpi

#endif  // TFMPI_GLUE_EXTRAS_SCATTER_IN_PLACE_H_
