// The average of one sparse gradient over the ranks, as an op: for gradients that are averaged
// before an optimizer op, or without one.
//
// Like average_kernel.h: in graphs a stock IdentityN with private attributes, whose inputs are
// values, indices and the weight (python/_src/average/carrier.py creates it; decorators.cc installs
// this kernel); in eager code the op TfMpiSparseAverage. The output has the rows of all ranks: each
// index once, or, depending on the attribute duplicates, as often as the ranks have it.

#ifndef TFMPI_GLUE_KERNELS_SPARSE_AVERAGE_KERNEL_H_
#define TFMPI_GLUE_KERNELS_SPARSE_AVERAGE_KERNEL_H_

#include <cstdint>
#include <string>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow_patches/core/reduction/sparse_rows.h"
#include "tensorflow_patches/glue/runtime/gpu_step.h"
#include "tensorflow_patches/glue/runtime/runtime.h"

namespace tfmpi {

class SparseAverageKernel : public tensorflow::AsyncOpKernel {
 public:
  explicit SparseAverageKernel(tensorflow::OpKernelConstruction* construction);

  void ComputeAsync(tensorflow::OpKernelContext* context, DoneCallback done) override;

  // Whether an IdentityN is an average of a sparse gradient, in the form for uncompiled steps.
  static bool IsMarked(const tensorflow::NodeDef& node);

 private:
  // `own`: values, indices and weight, in host memory.
  void Average(tensorflow::OpKernelContext* context, Engine* engine, const TensorList& own,
               const DoneCallback& done);

  std::string name_;         // of the engine's request, without SessionSuffix
  int64_t table_rows_ = -1;  // -1: unknown
  Duplicates duplicates_ = Duplicates::kSum;
};

}  // namespace tfmpi

#endif  // TFMPI_GLUE_KERNELS_SPARSE_AVERAGE_KERNEL_H_
