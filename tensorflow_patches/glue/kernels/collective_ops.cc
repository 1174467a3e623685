// The collectives of tensorflow.mpi as ops, for eager code, tf.function and graphs.
//
// Each has a string input, the name that identifies it on all ranks. The collectives' kernels,
// for CPUs only, run on inter-op threads and complete on TensorFlow's runner; a cancelled step
// withdraws its requests: see request_group.h. TfMpiHandleName is not a collective.

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow_patches/glue/runtime/request_group.h"

namespace tfmpi {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

constexpr char kNumbers[] =
    "T: {half, bfloat16, float, double, complex64, complex128, int8, int16, int32, int64, uint8, "
    "uint16, uint32, uint64}";
constexpr char kAnything[] =
    "T: {half, bfloat16, float, double, complex64, complex128, int8, int16, int32, int64, uint8, "
    "uint16, uint32, uint64, bool}";

// The ranks that take part, in ascending order; an empty list: all ranks.
constexpr char kOfSomeRanks[] = "members: list(int) = []";
// If the ranks differ in dtype or shape, the op fails with FailedPrecondition, as scripts written
// for Horovod expect.
constexpr char kForHorovod[] = "for_horovod: bool = false";

absl::Status GatheredShape(InferenceContext* context) {
  ShapeHandle shape;
  TF_RETURN_IF_ERROR(context->WithRankAtLeast(context->input(0), 1, &shape));
  ShapeHandle gathered;
  TF_RETURN_IF_ERROR(context->ReplaceDim(shape, 0, context->UnknownDim(), &gathered));
  context->set_output(0, gathered);
  return absl::OkStatus();
}

REGISTER_OP("TfMpiAllreduce")
    .Input("tensor: T")
    .Input("tensor_name: string")
    .Output("reduced: T")
    .Attr(kNumbers)
    .Attr("reduce_op: int")
    .Attr(kOfSomeRanks)
    .Attr(kForHorovod)
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(tensorflow::shape_inference::UnchangedShape);

REGISTER_OP("TfMpiAllgather")
    .Input("tensor: T")
    .Input("tensor_name: string")
    .Output("gathered: T")
    .Attr(kAnything)
    .Attr("of_data: bool = false")  // submitted by a dataset, ahead of use
    .Attr(kOfSomeRanks)
    .Attr(kForHorovod)
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(GatheredShape);

REGISTER_OP("TfMpiBroadcast")
    .Input("tensor: T")
    .Input("tensor_name: string")
    .Output("received: T")
    .Attr(kAnything)
    .Attr("root: int")
    .Attr(kOfSomeRanks)
    .Attr(kForHorovod)
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(tensorflow::shape_inference::UnchangedShape);

// The container and name of a resource's handle, by which Python identifies eager variables.
REGISTER_OP("TfMpiHandleName")
    .Input("resource: resource")
    .Output("container_and_name: string")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* context) {
      context->set_output(0, context->Vector(2));
      return absl::OkStatus();
    });

class CollectiveKernel : public tensorflow::AsyncOpKernel {
 public:
  explicit CollectiveKernel(OpKernelConstruction* construction) : AsyncOpKernel(construction) {
    std::vector<int32_t> members;
    OP_REQUIRES_OK(construction, construction->GetAttr("members", &members));
    OP_REQUIRES_OK(construction, construction->GetAttr("for_horovod", &for_horovod_));
    if (!members.empty()) members_ = std::make_shared<const Members>(std::move(members));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    Engine* const engine = GetEngine();
    OP_REQUIRES_ASYNC(context, engine != nullptr, AveragingOffError(), done);
    const Tensor tensor = context->input(0);
    Request request;
    request.name = context->input(1).scalar<tensorflow::tstring>()();
    ToCoreType(tensor.dtype(), &request.signature.dtype);  // the ops allow no other types
    request.signature.shape = ToShape(tensor.shape());
    request.signature.members = members_;
    request.purpose = Purpose::kScript;
    request.input = Data(tensor);
    OP_REQUIRES_OK_ASYNC(context, Prepare(context, tensor, &request), done);
    const std::string what = "'" + request.name + "' was exchanged";  // "cancelled before ..."
    auto group = RequestGroup::OfKernel(engine, context);
    group->Add(std::move(request));
    RequestGroup::Submit(std::move(group), what,
                         [tensor, for_horovod = for_horovod_,
                          end = EndOf(context, done)](const absl::Status& ended) {
                           const bool differ = for_horovod && absl::IsInvalidArgument(ended);
                           end(differ ? absl::FailedPreconditionError(ended.message()) : ended);
                         });
  }

 protected:
  // Sets what is specific to the operation, and the memory for its result.
  virtual absl::Status Prepare(OpKernelContext* context, const Tensor& tensor,
                               Request* request) = 0;

  static absl::Status OutputLikeInput(OpKernelContext* context, const Tensor& tensor,
                                      Request* request) {
    Tensor* output = nullptr;
    TF_RETURN_IF_ERROR(context->allocate_output(0, tensor.shape(), &output));
    request->output = Data(*output);
    return absl::OkStatus();
  }

 private:
  std::shared_ptr<const Members> members_;
  bool for_horovod_ = false;
};

class AllreduceKernel : public CollectiveKernel {
 public:
  explicit AllreduceKernel(OpKernelConstruction* construction) : CollectiveKernel(construction) {
    int64_t op = 0;
    OP_REQUIRES_OK(construction, construction->GetAttr("reduce_op", &op));
    OP_REQUIRES(construction, op >= 0 && op < kNumReduceOps,
                absl::InvalidArgumentError("reduce_op is out of range"));
    op_ = static_cast<ReduceOp>(op);
  }

 protected:
  absl::Status Prepare(OpKernelContext* context, const Tensor& tensor, Request* request) override {
    request->signature.kind = OpKind::kAllreduce;
    request->signature.op = op_;
    return OutputLikeInput(context, tensor, request);
  }

 private:
  ReduceOp op_ = ReduceOp::kAverage;
};

class AllgatherKernel : public CollectiveKernel {
 public:
  explicit AllgatherKernel(OpKernelConstruction* construction) : CollectiveKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("of_data", &of_data_));
  }

 protected:
  absl::Status Prepare(OpKernelContext* context, const Tensor& tensor, Request* request) override {
    request->signature.kind = OpKind::kAllgather;
    if (of_data_) request->purpose = Purpose::kData;
    const TensorShape shape = tensor.shape();
    // Runs on the communication thread before the kernel has ended, so `context` is still valid.
    request->allocate = [context, shape](const std::vector<int64_t>& rows) -> void* {
      TensorShape gathered = shape;
      int64_t total = 0;
      for (int64_t n : rows) total += n;
      gathered.set_dim(0, total);
      Tensor* output = nullptr;
      const absl::Status status = context->allocate_output(0, gathered, &output);
      if (!status.ok()) {
        context->SetStatus(status);
        return nullptr;
      }
      return Data(*output);
    };
    return absl::OkStatus();
  }

 private:
  bool of_data_ = false;
};

class BroadcastKernel : public CollectiveKernel {
 public:
  explicit BroadcastKernel(OpKernelConstruction* construction) : CollectiveKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("root", &root_));
  }

 protected:
  absl::Status Prepare(OpKernelContext* context, const Tensor& tensor, Request* request) override {
    request->signature.kind = OpKind::kBroadcast;
    request->signature.root = static_cast<int32_t>(root_);
    TF_RETURN_IF_ERROR(OutputLikeInput(context, tensor, request));
    if (tensor.TotalBytes() != 0) {  // in place; overwritten on the other ranks
      std::memcpy(request->output, request->input, tensor.TotalBytes());
    }
    return absl::OkStatus();
  }

 private:
  int64_t root_ = 0;
};

class HandleNameKernel : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const tensorflow::ResourceHandle& handle = tensorflow::HandleFromInput(context, 0);
    Tensor* output = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({2}), &output));
    output->vec<tensorflow::tstring>()(0) = handle.container();
    output->vec<tensorflow::tstring>()(1) = handle.name();
  }
};

REGISTER_KERNEL_BUILDER(Name("TfMpiAllreduce").Device(tensorflow::DEVICE_CPU), AllreduceKernel);
REGISTER_KERNEL_BUILDER(Name("TfMpiAllgather").Device(tensorflow::DEVICE_CPU), AllgatherKernel);
REGISTER_KERNEL_BUILDER(Name("TfMpiBroadcast").Device(tensorflow::DEVICE_CPU), BroadcastKernel);
REGISTER_KERNEL_BUILDER(Name("TfMpiHandleName").Device(tensorflow::DEVICE_CPU), HandleNameKernel);
REGISTER_KERNEL_BUILDER(Name("TfMpiHandleName")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("resource")
                            .HostMemory("container_and_name"),
                        HandleNameKernel);

}  // namespace
}  // namespace tfmpi
