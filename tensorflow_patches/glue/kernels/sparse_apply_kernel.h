// The decorated kernel of a sparse optimizer op: averages its rows over the ranks, unless that has
// already been done, then runs the stock kernel on the rows of all ranks: on all of them, or, if
// there are many and all ranks share a node, on this rank's part of them (divided_update.h).
//
// Created by the decorating factory (registration/decorators.cc) if there is more than one rank;
// owns the stock kernel. For threads see apply_kernel.h.

#ifndef TFMPI_GLUE_KERNELS_SPARSE_APPLY_KERNEL_H_
#define TFMPI_GLUE_KERNELS_SPARSE_APPLY_KERNEL_H_

#include <memory>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow_patches/glue/kernels/apply_kernel.h"

namespace tfmpi {

class SparseApplyKernel : public tensorflow::AsyncOpKernel {
 public:
  // `op` must be sparse.
  SparseApplyKernel(tensorflow::OpKernelConstruction* construction, const ApplyOp& op,
                    std::unique_ptr<tensorflow::OpKernel> stock);

  void ComputeAsync(tensorflow::OpKernelContext* context, DoneCallback done) override;

 private:
  class Step;

  const std::unique_ptr<tensorflow::OpKernel> stock_;
  const ApplyNode node_;
  int indices_ = -1;         // input index
  bool only_update_ = true;  // no other optimizer op of its graph updates the variable
};

}  // namespace tfmpi

#endif  // TFMPI_GLUE_KERNELS_SPARSE_APPLY_KERNEL_H_
