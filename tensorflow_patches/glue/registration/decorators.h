// The table of what we put in the place of TensorFlow's kernels: one line per kind of op.
//
// A line has the names of ops, the devices, and the function that makes the kernel.
// Lines that name an extra count only if it is on (extras.h); without them gradients are averaged
// as with them.

#ifndef TFMPI_GLUE_REGISTRATION_DECORATORS_H_
#define TFMPI_GLUE_REGISTRATION_DECORATORS_H_

#include <memory>

#include "tensorflow/core/framework/kernel_def.pb.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfmpi {

// `stock` if no line is for this kernel; else a factory that owns it, and asks the lines, in their
// order, each time that a kernel is made. Runs while TensorFlow's libraries are being loaded, as
// interpose.h says.
std::unique_ptr<tensorflow::kernel_factory::OpKernelFactory> Decorate(
    const tensorflow::KernelDef& kernel,
    std::unique_ptr<tensorflow::kernel_factory::OpKernelFactory> stock);

}  // namespace tfmpi

#endif  // TFMPI_GLUE_REGISTRATION_DECORATORS_H_
