#include "tensorflow_patches/glue/apply_kernel.h"

#include <atomic>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow_patches/core/reduce.h"
#include "tensorflow_patches/core/timeline.h"
#include "tensorflow_patches/glue/request_group.h"
#include "tensorflow_patches/glue/variable_names.h"

namespace tfmpi {

using tensorflow::HandleFromInput;
using tensorflow::LookupResource;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorValue;

namespace {

std::atomic<int64_t> g_applied{0};
thread_local bool t_averaged = false;

// The graph name of a ref variable: its colocation, which optimizers set, else the node it comes
// from.
std::string RefVariableName(const tensorflow::NodeDef& node) {
  std::vector<std::string> colocation;
  if (tensorflow::TryGetNodeAttr(node, "_class", &colocation)) {
    for (const std::string& location : colocation) {
      if (location.compare(0, 5, "loc:@") == 0) return location.substr(5);
    }
  }
  if (node.input_size() == 0) return node.name();
  return node.input(0).substr(0, node.input(0).find(':'));
}

// The variable and its slots: every ref or resource input of an Apply op.
bool IsState(OpKernelContext* context, int input) {
  return context->input_is_ref(input) || context->input_dtype(input) == tensorflow::DT_RESOURCE;
}

bool ReadState(OpKernelContext* context, int input, Tensor* value) {
  if (context->input_is_ref(input)) {
    *value = context->mutable_input(input, /*lock_held=*/false);
    return value->IsInitialized();
  }
  tensorflow::core::RefCountPtr<tensorflow::Var> variable;
  if (!LookupResource(context, HandleFromInput(context, input), &variable).ok()) return false;
  tensorflow::tf_shared_lock lock(*variable->mu());
  *value = *variable->tensor();
  return variable->is_initialized;
}

absl::Status WriteState(OpKernelContext* context, int input, const Tensor& value) {
  if (context->input_is_ref(input)) {
    context->replace_ref_input(input, value, /*lock_held=*/false);
    return absl::OkStatus();
  }
  tensorflow::core::RefCountPtr<tensorflow::Var> variable;
  absl::Status status = LookupResource(context, HandleFromInput(context, input), &variable);
  if (!status.ok()) return status;
  tensorflow::mutex_lock lock(*variable->mu());
  *variable->tensor() = value;
  return status;
}

}  // namespace

// One execution of the kernel. Deletes itself before it calls `done`.
class ApplyKernel::Step {
 public:
  Step(ApplyKernel* kernel, OpKernelContext* context, DoneCallback done, Engine* engine)
      : kernel_(kernel),
        context_(context),
        done_(std::move(done)),
        engine_(engine),
        group_(std::make_unique<RequestGroup>(engine, context->cancellation_manager(),
                                              *context->runner())) {}

  // `averaged`: the gradient is an average already; what is left is the start in step.
  void Start(const std::string& key, bool averaged);

 private:
  struct Broadcast {
    int input;
    Tensor value;
  };

  absl::Status PrepareGradient(bool first_apply);
  void AddBroadcasts();
  void Finish(absl::Status status);

  ApplyKernel* const kernel_;
  OpKernelContext* const context_;
  DoneCallback done_;
  Engine* const engine_;

  std::string name_;
  Tensor gradient_;  // the input; kept so that its buffer lives as long as the request
  Tensor average_;   // may share that buffer when nobody else holds it
  std::vector<Broadcast> broadcasts_;
  std::unique_ptr<RequestGroup> group_;  // until it is submitted
};

void ApplyKernel::Step::Start(const std::string& key, bool averaged) {
  const VariableUse use = VariableNames::Get().Use(key, kernel_->request_suffix_);
  name_ = use.name;
  if (averaged) {
    average_ = context_->input(kernel_->gradient_);
  } else {
    const absl::Status status = PrepareGradient(use.first_apply);
    if (!status.ok()) return Finish(status);
  }
  if (use.first_apply) AddBroadcasts();
  if (averaged && broadcasts_.empty()) return Finish(absl::OkStatus());
  RequestGroup::Submit(std::move(group_), "'" + name_ + "' was averaged",
                       [this](const absl::Status& status) { Finish(status); });
}

absl::Status ApplyKernel::Step::PrepareGradient(bool first_apply) {
  const int input = kernel_->gradient_;
  DataType dtype;
  if (!ToCoreType(context_->input_dtype(input), &dtype)) {
    return absl::UnimplementedError(
        absl::StrCat("the gradient of '", name_, "' is ",
                     tensorflow::DataTypeString(context_->input_dtype(input)),
                     ", which cannot be averaged over ranks; set TF_MPI_ENABLE=0"));
  }
  // Before this step holds the gradient too: one that nobody else reads is averaged where it lies.
  const absl::Status status = context_->forward_input_or_allocate_temp(
      {input}, context_->input_dtype(input), context_->input(input).shape(), &average_);
  if (!status.ok()) return status;
  gradient_ = context_->input(input);
  Request request =
      RequestFor(OpKind::kAllreduce, name_ + kernel_->request_suffix_, dtype, gradient_);
  request.input = Data(gradient_);
  request.output = Data(average_);
  if (first_apply) request.fingerprint = Fingerprint(request.input, gradient_.TotalBytes());
  group_->Add(std::move(request));
  CountGradients(1);
  return status;
}

// The safety net: rank 0's value becomes every rank's, before the first Apply, for what nothing has
// brought in step (a raw op, or an eager variable made inside its first tape), slots included.
void ApplyKernel::Step::AddBroadcasts() {
  bool in_step = false;
  for (int input = 0; input < context_->num_inputs(); ++input) {
    if (!IsState(context_, input)) continue;
    // Of refs only the variable has a name here; its slots are in step if it is.
    if (input == 0 || !context_->input_is_ref(input)) {
      in_step = VariableNames::Get().TestAndMarkInStep(kernel_->VariableKey(context_, input));
    }
    Tensor value;
    DataType dtype;
    if (in_step || !ReadState(context_, input, &value) || !ToCoreType(value.dtype(), &dtype)) {
      continue;
    }
    if (engine_->topology().rank != 0) {
      Tensor fresh;
      if (!context_->allocate_temp(value.dtype(), value.shape(), &fresh).ok()) continue;
      value = fresh;
    }
    Request request = RequestFor(
        OpKind::kBroadcast, "start of " + name_ + " input " + std::to_string(input), dtype, value);
    request.output = Data(value);
    group_->Add(std::move(request));
    broadcasts_.push_back({input, value});
  }
}

void ApplyKernel::Step::Finish(absl::Status status) {
  if (engine_->topology().rank != 0) {
    for (const Broadcast& broadcast : broadcasts_) {
      if (status.ok()) status = WriteState(context_, broadcast.input, broadcast.value);
    }
  }
  if (status.ok()) {
    gradient_ = Tensor();
    const Span span(Stage::kApply, name_, average_.TotalBytes());
    RunOnGradient(kernel_->stock_.get(), context_, kernel_->gradient_, &average_);
  } else {
    context_->SetStatus(status);
  }
  const DoneCallback done = std::move(done_);
  delete this;
  done();
}

ApplyKernel::ApplyKernel(OpKernelConstruction* construction, const ApplyOp& op,
                         std::unique_ptr<OpKernel> stock)
    : AsyncOpKernel(construction), stock_(std::move(stock)) {
  int end = 0;
  OP_REQUIRES_OK(construction, stock_->InputRange(op.gradient, &gradient_, &end));
  ref_variable_ = RefVariableName(def());
  request_suffix_ = RequestSuffix(def());
  averaged_ = IsAveraged(def());
}

std::string ApplyKernel::VariableKey(OpKernelContext* context, int input) const {
  const tensorflow::SessionMetadata* session = context->session_metadata();
  const std::string scope =
      session != nullptr ? VariableNames::Get().Scope(session->version()) : "";
  if (context->input_is_ref(input)) return HandleKey("", ref_variable_, scope);
  const tensorflow::ResourceHandle& handle = HandleFromInput(context, input);
  return HandleKey(handle.container(), handle.name(), scope);
}

int64_t ApplyKernel::Applied() { return g_applied; }
bool ApplyKernel::SetThreadAveraged(bool averaged) { return std::exchange(t_averaged, averaged); }

void ApplyKernel::ComputeAsync(OpKernelContext* context, DoneCallback done) {
  Engine* const engine = GetEngine();
  g_applied.fetch_add(1, std::memory_order_relaxed);
  (new Step(this, context, std::move(done), engine))
      ->Start(VariableKey(context, 0), averaged_ || t_averaged);
}

std::string RequestSuffix(const tensorflow::NodeDef& node) {
  std::string suffix = " (" + node.op();
  int64_t occurrence = 0;
  if (tensorflow::TryGetNodeAttr(node, "_tf_mpi_occurrence", &occurrence)) {
    suffix += " #" + std::to_string(occurrence);
  }
  return suffix + ")";
}

bool IsAveraged(const tensorflow::NodeDef& node) {
  bool averaged = false;
  return tensorflow::TryGetNodeAttr(node, "_tf_mpi_averaged", &averaged) && averaged;
}

void RunOnGradient(OpKernel* stock, OpKernelContext* context, int index, Tensor* gradient) {
  OpKernelContext::Params* const params = context->params();
  absl::InlinedVector<TensorValue, 8> inputs(params->inputs.begin(), params->inputs.end());
  inputs[index] = TensorValue(gradient);
  OpKernelContext::Params replaced = *params;
  replaced.op_kernel = stock;
  replaced.inputs = inputs;
  context->set_params(&replaced);
  stock->Compute(context);
  context->set_params(params);
  replaced.eigen_gpu_device = nullptr;  // the original's; a Params deletes what it holds
}

RefusingKernel::RefusingKernel(OpKernelConstruction* construction, std::string reason)
    : OpKernel(construction), reason_(std::move(reason)) {}

void RefusingKernel::Compute(OpKernelContext* context) {
  context->SetStatus(absl::UnimplementedError(reason_));
}

}  // namespace tfmpi
