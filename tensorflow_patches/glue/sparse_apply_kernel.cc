#include "tensorflow_patches/glue/sparse_apply_kernel.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow_patches/core/timeline.h"
#include "tensorflow_patches/glue/apply_kernel.h"
#include "tensorflow_patches/glue/runtime.h"
#include "tensorflow_patches/glue/sparse_average.h"
#include "tensorflow_patches/glue/start_in_step.h"
#include "tensorflow_patches/glue/variable_names.h"

namespace tfmpi {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

namespace {

// The memory of a variable or slot, of which only addresses are made here.
struct StateRows {
  const char* data;
  int64_t rows;
  int64_t row_bytes;
};

void Prefetch(const StateRows& state, const Tensor& indices) {
  constexpr int64_t kLine = 64;
  const bool narrow = indices.dtype() == tensorflow::DT_INT32;
  for (int64_t i = 0; i < indices.NumElements(); ++i) {
    const int64_t row = narrow ? indices.flat<int32_t>()(i) : indices.flat<int64_t>()(i);
    if (row < 0 || row >= state.rows) continue;  // the stock kernel will say so
    const char* const begin = state.data + row * state.row_bytes;
    for (int64_t byte = 0; byte < state.row_bytes; byte += kLine) __builtin_prefetch(begin + byte);
  }
}

}  // namespace

// One execution of the kernel. Deletes itself before it calls `done`.
class SparseApplyKernel::Step {
 public:
  Step(SparseApplyKernel* kernel, OpKernelContext* context, DoneCallback done)
      : kernel_(kernel), context_(context), done_(std::move(done)) {}

  void Start(Engine* engine);

 private:
  int64_t TableRows() const;
  void Exchanged(const absl::Status& status);
  void RunOnRows(const Tensor& values, const Tensor& indices);
  void Finish(const absl::Status& status);

  SparseApplyKernel* const kernel_;
  OpKernelContext* const context_;
  DoneCallback done_;
  std::string name_;  // the variable's, for traces
  StartInStep start_;
  std::unique_ptr<SparseAverage> average_;  // null: the rows are averages already
};

void SparseApplyKernel::Step::Start(Engine* engine) {
  const VariableUse use = VariableNames::Get().Use(StateKey(context_, 0, kernel_->ref_variable_),
                                                   kernel_->request_suffix_);
  name_ = use.name;
  auto group =
      std::make_unique<RequestGroup>(engine, context_->cancellation_manager(), *context_->runner());
  const bool averaged = kernel_->averaged_ || ApplyKernel::ThreadAveraged();
  if (!averaged) {
    average_ =
        std::make_unique<SparseAverage>(context_, engine, use.name + kernel_->request_suffix_);
    const absl::Status status =
        average_->AddTo(group.get(), context_->input(kernel_->gradient_),
                        context_->input(kernel_->indices_), TableRows(), /*weight=*/1);
    if (!status.ok()) return Finish(status);
  }
  if (use.first_apply) {
    start_.AddBroadcasts(context_, use.name, kernel_->ref_variable_, engine->topology().rank,
                         group.get());
  }
  if (averaged && start_.empty()) return Finish(absl::OkStatus());
  RequestGroup::Submit(std::move(group), "'" + use.name + "' was averaged",
                       [this](const absl::Status& status) { Exchanged(status); });
}

// -1 for a variable without a value, of which the stock kernel will complain.
int64_t SparseApplyKernel::Step::TableRows() const {
  Tensor value;
  return ReadState(context_, 0, &value) && value.dims() > 0 ? value.dim_size(0) : -1;
}

void SparseApplyKernel::Step::Exchanged(const absl::Status& status) {
  if (!status.ok() || average_ == nullptr) return Finish(status);
  average_->Finish([this](const absl::Status& averaged) { Finish(averaged); });
}

// The rows of other ranks lie in no cache. A stock kernel waits for memory row by row; here a block
// of rows is fetched at once, and then updated. The update of a row depends on no other.
void SparseApplyKernel::Step::RunOnRows(const Tensor& values, const Tensor& indices) {
  constexpr int64_t kBlock = 256;  // rows; so each slice is as well aligned as the whole
  std::vector<StateRows> states;
  for (int input = 0; input < context_->num_inputs(); ++input) {
    Tensor state;
    if (IsState(context_, input) && ReadState(context_, input, &state) && state.dims() > 0 &&
        state.dim_size(0) > 0) {
      states.push_back({static_cast<const char*>(Data(state)), state.dim_size(0),
                        static_cast<int64_t>(state.TotalBytes()) / state.dim_size(0)});
    }
  }
  const bool sliced = values.dims() > 0 && indices.dims() == 1 &&
                      values.dim_size(0) == indices.dim_size(0) && values.dim_size(0) > kBlock;
  const int64_t rows = sliced ? values.dim_size(0) : 0;
  int64_t begin = 0;
  do {
    const int64_t end = std::min(begin + kBlock, rows);
    Tensor block_values = sliced ? values.Slice(begin, end) : values;
    Tensor block_indices = sliced ? indices.Slice(begin, end) : indices;
    for (const StateRows& state : states) Prefetch(state, block_indices);
    RunOnInputs(kernel_->stock_.get(), context_,
                {{kernel_->gradient_, &block_values}, {kernel_->indices_, &block_indices}});
    begin = end;
  } while (begin < rows && context_->status().ok());
}

void SparseApplyKernel::Step::Finish(const absl::Status& status) {
  const absl::Status written = status.ok() ? start_.Write(context_) : status;
  if (!written.ok()) {
    context_->SetStatus(written);
  } else {
    const bool averaged = average_ == nullptr;
    const Tensor& values = averaged ? context_->input(kernel_->gradient_) : *average_->values();
    const Span span(Stage::kApply, name_, values.TotalBytes());
    RunOnRows(values, averaged ? context_->input(kernel_->indices_) : *average_->indices());
  }
  const DoneCallback done = std::move(done_);
  delete this;
  done();
}

SparseApplyKernel::SparseApplyKernel(OpKernelConstruction* construction, const ApplyOp& op,
                                     std::unique_ptr<OpKernel> stock)
    : AsyncOpKernel(construction), stock_(std::move(stock)) {
  int end = 0;
  OP_REQUIRES_OK(construction, stock_->InputRange(op.gradient, &gradient_, &end));
  OP_REQUIRES_OK(construction, stock_->InputRange("indices", &indices_, &end));
  ref_variable_ = RefVariableName(def());
  request_suffix_ = RequestSuffix(def());
  averaged_ = IsAveraged(def());
}

void SparseApplyKernel::ComputeAsync(OpKernelContext* context, DoneCallback done) {
  ApplyKernel::CountApplied();
  (new Step(this, context, std::move(done)))->Start(GetEngine());
}

}  // namespace tfmpi
