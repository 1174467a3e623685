// The decorator table: which ops get kernels of ours, one line per kind of op and device. Of two
// lines for the same op and device, the extra's comes first.
//
// An extra's line applies only if the extra is on (extras.h); gradients are averaged either way.

#ifndef TFMPI_GLUE_REGISTRATION_DECORATORS_H_
#define TFMPI_GLUE_REGISTRATION_DECORATORS_H_

#include <memory>

#include "tensorflow/core/framework/kernel_def.pb.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfmpi {

// Returns `stock` if no line matches this kernel; else a factory that owns it and tries the lines,
// in order, each time a kernel is created. Runs while TensorFlow's libraries are being loaded; see
// interpose.cc.
std::unique_ptr<tensorflow::kernel_factory::OpKernelFactory> Decorate(
    const tensorflow::KernelDef& kernel,
    std::unique_ptr<tensorflow::kernel_factory::OpKernelFactory> stock);

}  // namespace tfmpi

#endif  // TFMPI_GLUE_REGISTRATION_DECORATORS_H_
