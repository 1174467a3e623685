#include "tensorflow_patches/glue/kernels/apply_kernel.h"

#include <atomic>
#include <string_view>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "tensorflow/core/framework/device.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow_patches/core/cpu/reduce.h"
#include "tensorflow_patches/core/observability/timeline.h"
#include "tensorflow_patches/glue/kernels/average_kernel.h"
#include "tensorflow_patches/glue/runtime/request_group.h"
#include "tensorflow_patches/glue/variables/initial_broadcast.h"
#include "tensorflow_patches/glue/variables/variable_names.h"

namespace tfmpi {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorValue;

namespace {

std::atomic<int64_t> g_applied{0};
thread_local bool t_averaged = false;

std::string RequestSuffix(const tensorflow::NodeDef& node) {
  // The same for dense and sparse gradients: if the ranks have one of each, that is an error. With
  // two names they would wait for each other.
  std::string op = node.op();
  if (const size_t sparse = op.find("SparseApply"); sparse != std::string::npos) {
    op.erase(sparse, std::string_view("Sparse").size());
  }
  std::string suffix = " (" + op;
  int64_t occurrence = 0;
  if (tensorflow::TryGetNodeAttr(node, "_tf_mpi_occurrence", &occurrence)) {
    suffix += " #" + std::to_string(occurrence);
  }
  return suffix + ")";
}

}  // namespace

bool IsAveraged(const tensorflow::NodeDef& node) {
  bool averaged = false;
  return tensorflow::TryGetNodeAttr(node, "_tf_mpi_averaged", &averaged) && averaged;
}

ApplyNode::ApplyNode(OpKernelConstruction* construction, const ApplyOp& op, const OpKernel& stock)
    : ref_variable(RefVariableName(construction->def())),
      request_suffix(RequestSuffix(construction->def())),
      averaged(IsAveraged(construction->def())) {
  int end = 0;
  OP_REQUIRES_OK(construction, stock.InputRange(op.gradient, &gradient, &end));
}

// One execution of the kernel. Deletes itself before it calls `done`.
class ApplyKernel::Step {
 public:
  Step(ApplyKernel* kernel, OpKernelContext* context, DoneCallback done, Engine* engine)
      : kernel_(kernel),
        context_(context),
        done_(std::move(done)),
        engine_(engine),
        group_(RequestGroup::OfKernel(engine, context)) {}

  // `averaged`: the gradient is already an average, so only the initial broadcast remains.
  void Start(const std::string& key, bool averaged);

 private:
  absl::Status PrepareGradient();
  void Finish(absl::Status status);

  ApplyKernel* const kernel_;
  OpKernelContext* const context_;
  DoneCallback done_;
  Engine* const engine_;

  VariableUse use_;
  Tensor gradient_;  // the input, held so that its buffer lives as long as the request
  Tensor average_;   // shares that buffer if nothing else holds it
  InitialBroadcast initial_broadcast_;
  std::unique_ptr<RequestGroup> group_;  // until it is submitted
};

void ApplyKernel::Step::Start(const std::string& key, bool averaged) {
  use_ = VariableNames::Get().Use(key, kernel_->node_.request_suffix);
  if (averaged) {
    average_ = context_->input(kernel_->node_.gradient);
  } else {
    const absl::Status status = PrepareGradient();
    if (!status.ok()) return Finish(status);
  }
  if (use_.first_apply) {
    initial_broadcast_.AddBroadcasts(context_, kernel_->node_.ref_variable, &use_, group_.get());
  }
  if (averaged) {
    // Not in the first use, in which the broadcast has yet to end.
    if (!use_.first_apply) kernel_->synchronized_.Add(context_, use_.name);
    if (initial_broadcast_.empty()) return Finish(absl::OkStatus());
  }
  RequestGroup::Submit(std::move(group_), "'" + use_.name + "' was averaged",
                       [this](const absl::Status& status) { Finish(status); });
}

absl::Status ApplyKernel::Step::PrepareGradient() {
  const int input = kernel_->node_.gradient;
  DataType dtype;
  TF_RETURN_IF_ERROR(CheckCanAverage(use_.name, context_->input_dtype(input), &dtype));
  // Must come before gradient_ takes a reference, or the gradient is never averaged in place: only
  // an input without other references is forwarded.
  TF_RETURN_IF_ERROR(context_->forward_input_or_allocate_temp(
      {input}, context_->input_dtype(input), context_->input(input).shape(), &average_));
  gradient_ = context_->input(input);
  Request request =
      RequestFor(OpKind::kAllreduce, use_.name + kernel_->node_.request_suffix, dtype, gradient_);
  request.input = Data(gradient_);
  request.output = Data(average_);
  // Only the first gradients: to warn if all ranks have the same. No host thread may read a GPU's.
  if (use_.first_apply && !RunsOnGpu(context_)) {
    request.fingerprint = Fingerprint(request.input, gradient_.TotalBytes());
  }
  group_->Add(std::move(request));
  CountGradients(1);
  return absl::OkStatus();
}

void ApplyKernel::Step::Finish(absl::Status status) {
  if (status.ok()) status = initial_broadcast_.Write(context_);
  if (status.ok()) {
    gradient_ = Tensor();
    const Span span(Stage::kApply, use_.name, average_.TotalBytes());
    RunOnInputs(kernel_->stock_.get(), context_, {{kernel_->node_.gradient, &average_}});
  } else {
    context_->SetStatus(status);
  }
  if (!context_->status().ok()) VariableNames::Get().Undo(use_);
  const DoneCallback done = std::move(done_);
  delete this;
  done();
}

ApplyKernel::ApplyKernel(OpKernelConstruction* construction, const ApplyOp& op,
                         std::unique_ptr<OpKernel> stock)
    : AsyncOpKernel(construction), stock_(std::move(stock)), node_(construction, op, *stock_) {}

int64_t ApplyKernel::Applied() { return g_applied; }
void ApplyKernel::CountApplied() { g_applied.fetch_add(1, std::memory_order_relaxed); }
bool ApplyKernel::ThreadAveraged() { return t_averaged; }
bool ApplyKernel::SetThreadAveraged(bool averaged) { return std::exchange(t_averaged, averaged); }

void ApplyKernel::ComputeAsync(OpKernelContext* context, DoneCallback done) {
  Engine* const engine = GetEngine();
  CountApplied();
  if (engine == nullptr || engine->topology().size == 1 || AreAveragesLeftToScript() ||
      ((node_.averaged || t_averaged) && synchronized_.Holds(context))) {
    const std::string traced = synchronized_.TraceName(*this);
    const Span span(Stage::kApply, traced, context->input(node_.gradient).TotalBytes());
    RunStock(stock_.get(), context);  // it has the same node and inputs as this kernel
    return done();
  }
  (new Step(this, context, std::move(done), engine))
      ->Start(StateKey(context, 0, node_.ref_variable), node_.averaged || t_averaged);
}

void RunStock(OpKernel* stock, OpKernelContext* context) {
  if (!RunsOnGpu(context)) return stock->Compute(context);
  // Device::Compute makes its GPU the current one, as the stock kernel's launches need.
  static_cast<tensorflow::Device*>(context->device())->Compute(stock, context);
}

void RunOnInputs(OpKernel* stock, OpKernelContext* context,
                 std::initializer_list<std::pair<int, Tensor*>> replaced_inputs) {
  OpKernelContext::Params* const params = context->params();
  absl::InlinedVector<TensorValue, 8> inputs(params->inputs.begin(), params->inputs.end());
  for (const auto& [index, tensor] : replaced_inputs) inputs[index] = TensorValue(tensor);
  OpKernelContext::Params replaced = *params;
  replaced.op_kernel = stock;
  replaced.inputs = inputs;
  context->set_params(&replaced);
  RunStock(stock, context);
  context->set_params(params);
  replaced.eigen_gpu_device = nullptr;  // `params` owns it, but ~Params would delete it here, too
}

RefusingKernel::RefusingKernel(OpKernelConstruction* construction, std::string reason)
    : OpKernel(construction), reason_(std::move(reason)) {}

void RefusingKernel::Compute(OpKernelContext* context) {
  context->SetStatus(absl::UnimplementedError(reason_));
}

}  // namespace tfmpi
