// An extra: the decorated kernel of ResourceScatterAdd, Sub and Update, by which Keras and tf_keras
// update the rows of an embedding.
//
// A stock scatter puts its variable into copy-on-read mode for good: every op that reads the whole
// of it, as Keras's Embedding does in each step, then copies the table. Here a variable stays as it
// is, and is copied when it is written, if somebody still holds what was read, as by a dense
// optimizer op; what else it takes is the variable's lock, which a stock scatter shares with
// readers. What another op has put into copy-on-read mode stays in it.
//
// Made by the decorating factory (registration/decorators.cc), owns the stock kernel. TensorFlow
// calls Compute on an inter-op thread.

#ifndef TFMPI_GLUE_EXTRAS_SCATTER_IN_PLACE_H_
#define TFMPI_GLUE_EXTRAS_SCATTER_IN_PLACE_H_

#include <memory>
#include <string>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_var.h"

namespace tfmpi {

class ScatterInPlace : public tensorflow::OpKernel {
 public:
  // Of a variable of numbers.
  static bool Serves(const tensorflow::OpKernelConstruction& construction);

  ScatterInPlace(tensorflow::OpKernelConstruction* construction,
                 std::unique_ptr<tensorflow::OpKernel> stock);

  void Compute(tensorflow::OpKernelContext* context) override;

 private:
  // The stock kernel on the variable of `handle`, whose value is `table`.
  void Run(tensorflow::OpKernelContext* context, tensorflow::Tensor handle,
           const tensorflow::Tensor& table);

  const std::unique_ptr<tensorflow::OpKernel> stock_;
};

}  // namespace tfmpi

#endif  // TFMPI_GLUE_EXTRAS_SCATTER_IN_PLACE_H_
