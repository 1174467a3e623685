// Ops with which Python broadcasts and hashes a large variable without a copy in Python. To hash a
// variable on a GPU, TfMpiVariableDigest copies it to the host.
//
// Only eager code runs these ops (python/_src/variables/large_variables.py), on resource variables.

#include <memory>
#include <string>
#include <utility>

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow_patches/core/cpu/reduce.h"
#include "tensorflow_patches/glue/runtime/request_group.h"
#include "tensorflow_patches/glue/variables/initial_broadcast.h"

namespace tfmpi {
namespace {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;

// Gives every rank rank 0's value. The name identifies the operation on all ranks.
REGISTER_OP("TfMpiBroadcastVariable")
    .Input("resource: resource")
    .Input("request_name: string")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs);

REGISTER_OP("TfMpiVariableDigest")
    .Input("resource: resource")
    .Output("digest: int64")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape);

class BroadcastVariableKernel : public tensorflow::AsyncOpKernel {
 public:
  using AsyncOpKernel::AsyncOpKernel;

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    Engine* const engine = GetEngine();
    OP_REQUIRES_ASYNC(context, engine != nullptr, AveragingOffError(), done);
    const std::string name = context->input(1).scalar<tensorflow::tstring>()();
    auto broadcast = std::make_shared<InitialBroadcast>();
    auto group = RequestGroup::OfKernel(engine, context);
    OP_REQUIRES_OK_ASYNC(context, broadcast->AddBroadcast(context, 0, name, group.get()), done);
    RequestGroup::Submit(
        std::move(group), "'" + name + "' was exchanged",
        [context, broadcast, end = EndOf(context, done)](const absl::Status& ended) {
          end(ended.ok() ? broadcast->Write(context) : ended);
        });
  }
};

class VariableDigestKernel : public tensorflow::AsyncOpKernel {
 public:
  using AsyncOpKernel::AsyncOpKernel;

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    tensorflow::core::RefCountPtr<tensorflow::Var> variable;
    OP_REQUIRES_OK_ASYNC(
        context,
        tensorflow::LookupResource(context, tensorflow::HandleFromInput(context, 0), &variable),
        done);
    Tensor* digest = nullptr;
    OP_REQUIRES_OK_ASYNC(context, context->allocate_output(0, {}, &digest), done);
    Tensor value;
    {
      tensorflow::tf_shared_lock lock(*variable->mu());
      value = *variable->tensor();
    }
    int64_t* const result = digest->scalar<int64_t>().data();
    ToHost(
        context, {value},
        [result, end = EndOf(context, done)](const absl::Status& status, const TensorList& copies) {
          if (status.ok()) {
            const Tensor& copy = copies.front();
            *result = static_cast<int64_t>(Fingerprint(Data(copy), copy.TotalBytes()));
          }
          end(status);
        });
  }
};

REGISTER_KERNEL_BUILDER(Name("TfMpiBroadcastVariable").Device(tensorflow::DEVICE_CPU),
                        BroadcastVariableKernel);
REGISTER_KERNEL_BUILDER(Name("TfMpiVariableDigest").Device(tensorflow::DEVICE_CPU),
                        VariableDigestKernel);
REGISTER_KERNEL_BUILDER(Name("TfMpiBroadcastVariable")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("resource")
                            .HostMemory("request_name"),
                        BroadcastVariableKernel);
REGISTER_KERNEL_BUILDER(Name("TfMpiVariableDigest")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("resource")
                            .HostMemory("digest"),
                        VariableDigestKernel);

}  // namespace
}  // namespace tfmpi
