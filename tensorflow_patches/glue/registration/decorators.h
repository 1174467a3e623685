// The table of what replaces TensorFlow's kernels: one line per kind of op and device, extras
// first.
//
// A line has the names of ops, the devices, and the function that makes the kernel. Lines that name
// an extra only count if it is on (extras.h); gradients are averaged with or without them.

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
