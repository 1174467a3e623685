#include "tensorflow_patches/glue/kernels/average_kernel.h"

#include <cmath>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <utility>

#include "tensorflow/core/common_runtime/dma_helper.h"
#include "tensorflow/core/framework/log_memory.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow_patches/core/cpu/reduce.h"
#include "tensorflow_patches/glue/runtime/request_group.h"
#include "tensorflow_patches/glue/variables/variable_names.h"

namespace tfmpi {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TryGetNodeAttr;
using tensorflow::shape_inference::InferenceContext;

// Attributes of an IdentityN that is an average. TfMpiAverage has `label` and `names` instead.
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
REGISTER_KERNEL_BUILDER(Name("TfMpiAverage").Device(tensorflow::DEVICE_GPU).HostMemory("weight"),
                        AverageKernel);

// One of several tensors in a block of memory, which lives as long as any of them.
class PartBuffer : public tensorflow::TensorBuffer {
 public:
  PartBuffer(tensorflow::TensorBuffer* whole, void* data, size_t bytes)
      : TensorBuffer(data), whole_(whole), bytes_(bytes) {
    whole_->Ref();
  }

  size_t size() const override { return bytes_; }
  tensorflow::TensorBuffer* root_buffer() override { return whole_; }
  void FillAllocationDescription(tensorflow::AllocationDescription* description) const override {
    whole_->FillAllocationDescription(description);
  }

 private:
  ~PartBuffer() override { whole_->Unref(); }

  tensorflow::TensorBuffer* const whole_;
  const size_t bytes_;
};

bool HasShape(const tensorflow::TensorShape& shape, const Shape& dims) {
  if (shape.dims() != static_cast<int>(dims.size())) return false;
  for (int i = 0; i < shape.dims(); ++i) {
    if (shape.dim_size(i) != dims[i]) return false;
  }
  return true;
}

// Constant folding runs kernels while graphs are optimized, possibly on only one rank. An error
// makes it leave the node unchanged.
bool IsFolding(OpKernelContext* context) {
  return context->runner() == nullptr ||
         context->step_id() == tensorflow::LogMemory::CONSTANT_FOLDING_STEP_ID;
}

// If the weight is on a GPU, sets its address; DirectReduction and StagedReduction check its value.
absl::Status ReadWeight(OpKernelContext* context, int input, const std::string& name,
                        AveragePlan::Weight* weight) {
  TF_RETURN_IF_ERROR(CheckWeightInput(context, input));
  const Tensor& tensor = context->input(input);
  if (RunsOnGpu(context) && context->input_memory_type(input) != tensorflow::HOST_MEMORY) {
    weight->on_gpu = Data(tensor);
    return absl::OkStatus();
  }
  const float value = tensor.flat<float>()(0);
  weight->value = value;
  return CheckWeight(value, name);
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
    return MissingAttributesError();
  }
  // The weight is included in the T of an IdentityN.
  if (types.size() != spec->names.size() + (marked ? 1 : 0)) {
    return absl::InvalidArgumentError(absl::StrCat("the average of '", spec->names[0], "' has ",
                                                   spec->names.size(), " names for ",
                                                   types.size() - (marked ? 1 : 0), " tensors"));
  }
  spec->dtypes.resize(spec->names.size());
  for (size_t i = 0; i < spec->names.size(); ++i) {
    TF_RETURN_IF_ERROR(CheckCanAverage(spec->names[i], types[i], &spec->dtypes[i]));
  }
  return absl::OkStatus();
}

absl::Status MissingAttributesError() {
  return absl::InvalidArgumentError(
      "an average op lacks its attributes; the graph was probably saved by another version of this "
      "wheel: save it again with this one");
}

absl::Status CheckCanAverage(const std::string& name, tensorflow::DataType type, DataType* core) {
  if (ToCoreType(type, core) && IsFloating(*core)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the average of '", name, "' is ", tensorflow::DataTypeString(type),
                   "; only floating and complex tensors can be averaged over ranks"));
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

absl::Status CheckWeightInput(OpKernelContext* context, int input) {
  if (IsFolding(context)) return absl::CancelledError("an average over ranks is not a constant");
  const Tensor& tensor = context->input(input);
  if (tensor.dtype() != tensorflow::DT_FLOAT || tensor.NumElements() != 1) {
    return absl::InvalidArgumentError("the weight of an average is not a float32 scalar");
  }
  return absl::OkStatus();
}

absl::Status CheckWeight(float weight, const std::string& name) {
  if (std::isfinite(weight) && weight >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the weight of '", name,
                                                 "' and the tensors averaged with it is ", weight,
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
  std::vector<std::string> names = spec_.names;
  for (std::string& name : names) name += suffix;
  plan_ = std::make_shared<const AveragePlan>(names, spec_.dtypes, std::move(shapes),
                                              GetEngine()->fusion_threshold());
  return plan_;
}

// The averages stay in the memory in which they are reduced, which saves one copy per small tensor.
absl::Status AverageKernel::AllocateTogether(OpKernelContext* context,
                                             const AveragePlan::Entry& entry, void** data) const {
  const tensorflow::DataType type = context->input_dtype(static_cast<int>(entry.tensors[0]));
  Tensor whole;
  TF_RETURN_IF_ERROR(
      context->allocate_temp(type, tensorflow::TensorShape({entry.signature.shape[0]}), &whole));
  *data = Data(whole);
  for (size_t k = 0; k < entry.tensors.size(); ++k) {
    const int i = static_cast<int>(entry.tensors[k]);
    const tensorflow::TensorShape& shape = context->input(i).shape();
    const size_t size = SizeOf(entry.signature.dtype);
    tensorflow::core::RefCountPtr<tensorflow::TensorBuffer> part(new PartBuffer(
        tensorflow::DMAHelper::buffer(&whole), static_cast<char*>(*data) + entry.starts[k] * size,
        static_cast<size_t>(shape.num_elements()) * size));
    context->set_output(i, Tensor(type, shape, std::move(part)));
  }
  return absl::OkStatus();
}

absl::Status AverageKernel::Allocate(OpKernelContext* context, const AveragePlan& plan,
                                     std::vector<Request::Buffers>* buffers,
                                     std::vector<void*>* outputs) const {
  for (const AveragePlan::Entry& entry : plan.entries()) {
    outputs->push_back(nullptr);
    const bool together = entry.tensors.size() > 1 && IsWireForm(entry.signature.dtype) &&
                          entry.signature.shape[0] != 0;  // an empty tensor has no memory
    if (together) TF_RETURN_IF_ERROR(AllocateTogether(context, entry, &outputs->back()));
    for (const size_t tensor : entry.tensors) {
      const int i = static_cast<int>(tensor);
      const Tensor& input = context->input(i);
      (*buffers)[tensor] = {Data(input), nullptr};
      if (together) continue;
      // A tensor without other readers is averaged in place.
      Tensor* average = nullptr;
      TF_RETURN_IF_ERROR(
          context->forward_input_or_allocate_output({i}, i, input.shape(), &average));
      (*buffers)[tensor].output = Data(*average);
    }
  }
  return absl::OkStatus();
}

void AverageKernel::ComputeAsync(OpKernelContext* context, DoneCallback done) {
  Engine* const engine = GetEngine();
  if (engine == nullptr) {  // in a forked child
    for (int i = 0; i < context->num_outputs(); ++i) context->set_output(i, context->input(i));
    return done();
  }
  const int tensors = static_cast<int>(spec_.names.size());
  AveragePlan::Weight weight;
  OP_REQUIRES_OK_ASYNC(context, ReadWeight(context, tensors, spec_.names[0], &weight), done);
  const std::shared_ptr<const AveragePlan> plan = PlanFor(context);
  std::vector<Request::Buffers> buffers(tensors);
  std::vector<void*> outputs;
  OP_REQUIRES_OK_ASYNC(context, Allocate(context, *plan, &buffers, &outputs), done);
  auto group = RequestGroup::OfKernel(engine, context);
  const bool fingerprints = !RunsOnGpu(context) && IsFirstAverage(spec_.names[0]);
  for (Request& request : plan->Requests(buffers, outputs, weight, fingerprints)) {
    group->Add(std::move(request));
  }
  if (context->num_outputs() > tensors) {  // for an IdentityN
    context->set_output(tensors, context->input(tensors));
  }
  CountGradients(tensors);
  RequestGroup::Submit(std::move(group), "'" + spec_.names[0] + "' was averaged",
                       EndOf(context, std::move(done)));
}

}  // namespace tfmpi
