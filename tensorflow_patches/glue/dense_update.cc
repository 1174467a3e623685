#include "tensorflow_patches/glue/dense_update.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/util/work_sharder.h"
#include "tensorflow_patches/core/reduce.h"
#include "tensorflow_patches/glue/start_in_step.h"

namespace tfmpi {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorBuffer;
using tensorflow::TensorShape;
using tensorflow::Var;

std::atomic<DenseUpdates> g_mode{DenseUpdates::kAuto};
std::atomic<int64_t> g_divided{0};

// Smaller ones stay in the caches between their average and their update.
constexpr size_t kLeastBytes = size_t{1} << 20;

// Some of the elements of a tensor that somebody else keeps.
class ElementsBuffer : public TensorBuffer {
 public:
  ElementsBuffer(void* data, size_t bytes) : TensorBuffer(data), bytes_(bytes) {}

  size_t size() const override { return bytes_; }
  TensorBuffer* root_buffer() override { return this; }
  void FillAllocationDescription(tensorflow::AllocationDescription*) const override {}

 private:
  const size_t bytes_;
};

Tensor Elements(tensorflow::DataType type, size_t count, const void* data) {
  tensorflow::core::RefCountPtr<TensorBuffer> buffer(
      new ElementsBuffer(const_cast<void*>(data), count * tensorflow::DataTypeSize(type)));
  return Tensor(type, TensorShape({static_cast<int64_t>(count)}), std::move(buffer));
}

}  // namespace

int64_t DenseUpdate::Divided() { return g_divided; }

void DenseUpdate::SetMode(DenseUpdates mode) { g_mode = mode; }

bool DenseUpdate::MayServe(const tensorflow::OpKernelConstruction& construction) {
  bool use_locking = false;
  tensorflow::TryGetNodeAttr(construction.def(), "use_locking", &use_locking);
  return !use_locking && construction.input_type(0) == tensorflow::DT_RESOURCE;
}

bool DenseUpdate::Serves(OpKernelContext* context, const Tensor& gradient,
                         const Topology& topology) {
  const DenseUpdates mode = g_mode;
  DataType dtype;
  if (mode == DenseUpdates::kEvery || topology.size == 1 || !ToCoreType(gradient.dtype(), &dtype) ||
      IsComplex(dtype) || !IsFloating(dtype) || !IsWireForm(dtype) || gradient.NumElements() == 0) {
    return false;
  }
  int states = 0;
  for (int input = 0; input < context->num_inputs(); ++input) {
    if (!IsState(context, input)) continue;
    Tensor value;
    if (!ReadState(context, input, &value) || value.shape() != gradient.shape() ||
        value.dtype() != gradient.dtype()) {
      return false;  // the stock kernel will say what is wrong
    }
    ++states;
  }
  if (mode == DenseUpdates::kDivided) return true;
  // Slots would have to travel, too: what that costs is about what the update in the caches spares.
  return topology.nodes == 1 && gradient.TotalBytes() >= kLeastBytes && states == 1;
}

DenseUpdate::DenseUpdate(OpKernel* stock, OpKernelContext* context, int gradient)
    : stock_(stock),
      context_(context),
      gradient_input_(gradient),
      gradient_(context->input(gradient)) {
  for (int input = 0; input < context->num_inputs(); ++input) {
    if (!IsState(context, input)) continue;
    states_.emplace_back();
    states_.back().input = input;
  }
}

void DenseUpdate::AddTo(RequestGroup* group, const std::string& name, const std::string& variable) {
  variable_ = variable;
  DataType dtype;
  ToCoreType(gradient_.dtype(), &dtype);
  Request request = RequestFor(OpKind::kUpdate, name, dtype, gradient_);
  request.signature.states = static_cast<int32_t>(states_.size());
  request.input = Data(gradient_);
  request.states = this;
  group->Add(std::move(request));
}

// Not for long: whoever holds it may be waiting for what this thread does next, as a compiled step
// that averages gradients is.
absl::Status DenseUpdate::Lock(const State& state) {
  constexpr std::chrono::seconds kPatience{1};
  const TimePoint until = Clock::now() + kPatience;
  while (!state.variable->mu()->try_lock()) {
    if (Clock::now() >= until) {
      return absl::FailedPreconditionError(absl::StrCat(
          "'", tensorflow::HandleFromInput(context_, state.input).name(),
          "' is locked by another step that runs at the same time, and cannot be updated; set "
          "TF_MPI_DENSE_UPDATE=every"));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return absl::OkStatus();
}

// Finds the variable, and memory for its new value.
absl::Status DenseUpdate::Open(State* state) {
  const tensorflow::ResourceHandle& handle = tensorflow::HandleFromInput(context_, state->input);
  absl::Status status = tensorflow::LookupResource(context_, handle, &state->variable);
  if (!status.ok()) return status;
  status = Lock(*state);
  if (!status.ok()) return status;
  const Tensor& value = *state->variable->tensor();
  const bool own =
      value.RefCountIsOne() && value.IsAligned() && !state->variable->copy_on_read_mode.load();
  const bool fits = state->variable->is_initialized && value.shape() == gradient_.shape() &&
                    value.dtype() == gradient_.dtype();
  if (fits) state->before = state->after = value;
  state->variable->mu()->unlock();
  if (!fits) {
    return absl::FailedPreconditionError(absl::StrCat(
        "'", handle.name(), "' changed its shape or type while its gradient was averaged"));
  }
  if (own) return status;
  // Without memory the peers still need this rank's share; the step fails, so nobody reads on.
  Tensor fresh;
  status = context_->allocate_temp(gradient_.dtype(), gradient_.shape(), &fresh);
  if (status.ok()) state->after = fresh;
  return status;
}

std::vector<char*> DenseUpdate::Begin() {
  span_.emplace(Stage::kApply, variable_, gradient_.TotalBytes());
  std::vector<char*> memory;
  inputs_.assign(context_->params()->inputs.begin(), context_->params()->inputs.end());
  for (State& state : states_) {
    status_.Update(Open(&state));
    memory.push_back(static_cast<char*>(state.after.IsInitialized() ? Data(state.after) : nullptr));
    state.part = tensorflow::core::RefCountPtr<Var>(new Var(gradient_.dtype()));
    state.part->is_initialized = true;
    state.handle = Tensor(tensorflow::DT_RESOURCE, TensorShape({}));
    state.part->Ref();  // the handle's
    state.handle.scalar<tensorflow::ResourceHandle>()() =
        tensorflow::ResourceHandle::MakeRefCountingHandle(state.part.get(),
                                                          context_->device()->attributes().name());
    inputs_[state.input] = tensorflow::TensorValue(&state.handle);
  }
  inputs_[gradient_input_] = tensorflow::TensorValue(&average_);
  params_ = std::make_unique<OpKernelContext::Params>(*context_->params());
  params_->eigen_gpu_device = nullptr;  // the original's; a Params deletes what it holds
  params_->op_kernel = stock_;
  params_->inputs = inputs_;
  part_context_ = std::make_unique<OpKernelContext>(params_.get(), stock_->num_outputs());
  return memory;
}

void DenseUpdate::Update(size_t begin, size_t end, const void* average) {
  const size_t element = tensorflow::DataTypeSize(gradient_.dtype());
  for (State& state : states_) {
    if (!state.after.IsInitialized() || state.after.SharesBufferWith(state.before)) continue;
    std::memcpy(static_cast<char*>(Data(state.after)) + begin * element,
                static_cast<char*>(Data(state.before)) + begin * element, (end - begin) * element);
  }
  if (status_.ok()) RunOn(begin, end, average);
}

void DenseUpdate::RunOn(size_t begin, size_t end, const void* average) {
  const tensorflow::DataType type = gradient_.dtype();
  const size_t element = tensorflow::DataTypeSize(type);
  for (State& state : states_) {
    *state.part->tensor() =
        Elements(type, end - begin, static_cast<char*>(Data(state.after)) + begin * element);
  }
  average_ = Elements(type, end - begin, average);
  // The pool's threads may all be waiting for what this thread does next.
  const tensorflow::ScopedPerThreadMaxParallelism alone(1);
  stock_->Compute(part_context_.get());
  status_.Update(part_context_->status());
}

// Here, not when the step goes on: another update of the same variable finds this one's values.
void DenseUpdate::End() {
  part_context_ = nullptr;
  params_ = nullptr;
  for (State& state : states_) {
    if (!status_.ok() || state.after.SharesBufferWith(state.before)) continue;
    status_ = Lock(state);
    if (!status_.ok()) continue;
    *state.variable->tensor() = state.after;
    state.variable->mu()->unlock();
  }
  states_.clear();
  gradient_ = Tensor();
  span_.reset();
  g_divided.fetch_add(status_.ok(), std::memory_order_relaxed);
}

}  // namespace tfmpi
