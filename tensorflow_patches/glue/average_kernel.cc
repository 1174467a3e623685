#include "tensorflow_patches/glue/average_kernel.h"

#include <cmath>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <utility>

#include "tensorflow/core/framework/log_memory.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow_patches/core/reduce.h"
#include "tensorflow_patches/glue/request_group.h"
#include "tensorflow_patches/glue/variable_names.h"

namespace tfmpi {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TryGetNodeAttr;
using tensorflow::shape_inference::InferenceContext;

constexpr char kLabel[] = "_tf_mpi_average";
constexpr char kNames[] = "_tf_mpi_names";

REGISTER_OP("TfMpiAverage")
    .Input("tensors: T")
    .Input("weight: float")
    .Output("averages: T")
    .Attr("T: list(type) >= 1")
    .Attr("label: string")
    .Attr("names: list(string)")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn([](InferenceContext* context) {
      for (int i = 0; i < context->num_outputs(); ++i) context->set_output(i, context->input(i));
      return absl::OkStatus();
    });

REGISTER_KERNEL_BUILDER(Name("TfMpiAverage").Device(tensorflow::DEVICE_CPU), AverageKernel);

bool HasShape(const tensorflow::TensorShape& shape, const Shape& dims) {
  if (shape.dims() != static_cast<int>(dims.size())) return false;
  for (int i = 0; i < shape.dims(); ++i) {
    if (shape.dim_size(i) != dims[i]) return false;
  }
  return true;
}

// Constant folding runs kernels of its own while graphs are optimized, which may happen on one rank
// only. An error makes it leave the node as it is.
bool IsFolding(OpKernelContext* context) {
  return context->runner() == nullptr ||
         context->step_id() == tensorflow::LogMemory::CONSTANT_FOLDING_STEP_ID;
}

}  // namespace

bool AverageSpec::IsMarked(const tensorflow::NodeDef& node) {
  return node.attr().count(kLabel) != 0;
}

absl::Status AverageSpec::Read(const tensorflow::NodeDef& node, AverageSpec* spec) {
  const bool marked = IsMarked(node);
  spec->names = AverageNames(node);
  tensorflow::DataTypeVector types;
  if (spec->names.empty() || !GetNodeAttr(node, "T", &types).ok()) {
    return absl::InvalidArgumentError("an average without its attributes");
  }
  // The weight is one of the T of an IdentityN.
  if (types.size() != spec->names.size() + (marked ? 1 : 0)) {
    return absl::InvalidArgumentError(absl::StrCat("the average of '", spec->names[0], "' has ",
                                                   spec->names.size(), " names for ",
                                                   types.size() - (marked ? 1 : 0), " tensors"));
  }
  spec->dtypes.resize(spec->names.size());
  for (size_t i = 0; i < spec->names.size(); ++i) {
    if (!ToCoreType(types[i], &spec->dtypes[i]) || !IsFloating(spec->dtypes[i])) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the average of '", spec->names[i], "' is ", tensorflow::DataTypeString(types[i]),
          "; only floating and complex tensors can be averaged over ranks"));
    }
  }
  return absl::OkStatus();
}

std::vector<std::string> AverageNames(const tensorflow::NodeDef& node) {
  const bool marked = AverageSpec::IsMarked(node);
  std::string label;
  std::vector<std::string> names;
  if (!TryGetNodeAttr(node, marked ? kLabel : "label", &label) ||
      !TryGetNodeAttr(node, marked ? kNames : "names", &names)) {
    return {};
  }
  for (std::string& name : names) name += " (" + label + ")";
  return names;
}

std::string SessionSuffix(OpKernelContext* context) {
  const tensorflow::SessionMetadata* const session = context->session_metadata();
  if (session == nullptr) return "";
  const std::string scope = VariableNames::Get().Scope(session->version());
  return scope.empty() ? "" : " @" + scope;
}

absl::Status ReadWeight(OpKernelContext* context, int input, const std::string& name,
                        float* weight) {
  if (GetEngine() == nullptr) {
    return absl::FailedPreconditionError("averaging is off (TF_MPI_ENABLE)");
  }
  if (IsFolding(context)) {
    return absl::UnimplementedError("an average over ranks is no constant");
  }
  const Tensor& tensor = context->input(input);
  if (tensor.dtype() != tensorflow::DT_FLOAT || tensor.NumElements() != 1) {
    return absl::InvalidArgumentError("the weight of an average is no float32 scalar");
  }
  *weight = tensor.flat<float>()(0);
  return CheckWeight(*weight, name);
}

absl::Status CheckWeight(float weight, const std::string& name) {
  if (std::isfinite(weight) && weight >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the weight of '", name,
                                                 "' and what is averaged with it is ", weight,
                                                 "; it must be finite and not negative"));
}

bool IsFirstAverage(const std::string& name) {
  static auto* const mutex = new std::mutex;
  static auto* const seen = new std::unordered_set<std::string>;
  std::lock_guard<std::mutex> lock(*mutex);
  return seen->insert(name).second;
}

AverageKernel::AverageKernel(OpKernelConstruction* construction) : AsyncOpKernel(construction) {
  OP_REQUIRES_OK(construction, AverageSpec::Read(def(), &spec_));
}

std::vector<std::string> AverageKernel::Names(const std::string& suffix) const {
  std::vector<std::string> names = spec_.names;
  for (std::string& name : names) name += suffix;
  return names;
}

std::shared_ptr<const AveragePlan> AverageKernel::PlanFor(OpKernelContext* context) {
  const std::string suffix = SessionSuffix(context);
  std::lock_guard<std::mutex> lock(mutex_);
  const size_t tensors = spec_.names.size();
  bool fits = plan_ != nullptr && suffix_ == suffix;
  for (size_t i = 0; fits && i < tensors; ++i) {
    fits = HasShape(context->input(static_cast<int>(i)).shape(), plan_->shapes()[i]);
  }
  if (fits) return plan_;
  std::vector<Shape> shapes;
  for (size_t i = 0; i < tensors; ++i) {
    shapes.push_back(ToShape(context->input(static_cast<int>(i)).shape()));
  }
  suffix_ = suffix;
  plan_ = std::make_shared<const AveragePlan>(Names(suffix), spec_.dtypes, std::move(shapes),
                                              GetEngine()->fusion_threshold());
  return plan_;
}

void AverageKernel::ComputeAsync(OpKernelContext* context, DoneCallback done) {
  Engine* const engine = GetEngine();
  const int tensors = static_cast<int>(spec_.names.size());
  float scale = 0;
  OP_REQUIRES_OK_ASYNC(context, ReadWeight(context, tensors, spec_.names[0], &scale), done);
  const std::shared_ptr<const AveragePlan> plan = PlanFor(context);
  std::vector<Request::Buffers> buffers(tensors);
  for (int i = 0; i < tensors; ++i) {
    const Tensor& tensor = context->input(i);
    buffers[i].input = Data(tensor);
    // One that nobody else reads is averaged where it lies.
    Tensor* average = nullptr;
    OP_REQUIRES_OK_ASYNC(
        context, context->forward_input_or_allocate_output({i}, i, tensor.shape(), &average), done);
    buffers[i].output = Data(*average);
  }
  auto group =
      std::make_unique<RequestGroup>(engine, context->cancellation_manager(), *context->runner());
  for (Request& request : plan->Requests(buffers, scale, IsFirstAverage(spec_.names[0]))) {
    group->Add(std::move(request));
  }
  if (context->num_outputs() > tensors) {  // of an IdentityN
    context->set_output(tensors, context->input(tensors));
  }
  CountGradients(tensors);
  RequestGroup::Submit(std::move(group), "'" + spec_.names[0] + "' was averaged",
                       [context, done](const absl::Status& status) {
                         if (!status.ok()) context->SetStatus(status);
                         done();
                       });
}

}  // namespace tfmpi
