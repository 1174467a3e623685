#include "tensorflow_patches/glue/kernels/sparse_apply_kernel.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow_patches/core/observability/timeline.h"
#include "tensorflow_patches/glue/extras/divided_update.h"
#include "tensorflow_patches/glue/extras/rows_ahead.h"
#include "tensorflow_patches/glue/kernels/sparse_average.h"
#include "tensorflow_patches/glue/runtime/extras.h"
#include "tensorflow_patches/glue/runtime/runtime.h"
#include "tensorflow_patches/glue/variables/initial_broadcast.h"
#include "tensorflow_patches/glue/variables/variable_names.h"

namespace tfmpi {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

namespace {

// Whether there is one index per row of values; if not, the stock kernel reports that.
bool HasIndexPerRow(const Tensor& values, const Tensor& indices) {
  return values.dims() > 0 && indices.dims() == 1 && values.dim_size(0) == indices.dim_size(0);
}

}  // namespace

// One execution of the kernel. Deletes itself before it calls `done`.
class SparseApplyKernel::Step {
 public:
  Step(SparseApplyKernel* kernel, OpKernelContext* context, DoneCallback done, Engine* engine)
      : kernel_(kernel),
        context_(context),
        done_(std::move(done)),
        engine_(engine),
        on_gpu_(RunsOnGpu(context)),
        divided_(engine->topology()) {}

  void Start();

 private:
  void Submit(const absl::Status& copied);
  int64_t TableRows() const;
  void OnExchanged(const absl::Status& status);
  const Tensor& values() const;
  const Tensor& indices() const;
  // The host has averaged the rows, since it must read their indices; on a GPU, copies them back.
  void OnAveraged(const absl::Status& status);
  void Update(const absl::Status& status);
  // Run the stock kernel: on all rows, or on those at `positions`.
  absl::Status RunOnAllRows();
  absl::Status RunOnRows(const std::vector<int64_t>& positions);
  void RunOnBlock(Tensor block_values, Tensor block_indices);
  void OnDivided(absl::Status status);
  void Finish(const absl::Status& status);

  SparseApplyKernel* const kernel_;
  OpKernelContext* const context_;
  DoneCallback done_;
  VariableUse use_;
  std::string request_name_;
  InitialBroadcast initial_broadcast_;
  Engine* const engine_;
  const bool on_gpu_;
  TensorList own_;                          // this rank's values and indices, in host memory
  TensorList averages_;                     // those of all ranks
  std::unique_ptr<SparseAverage> average_;  // null: the rows are already averages
  DividedUpdate divided_;
};

void SparseApplyKernel::Step::Start() {
  use_ = VariableNames::Get().Use(StateKey(context_, 0, kernel_->node_.ref_variable),
                                  kernel_->node_.request_suffix);
  request_name_ = use_.name + kernel_->node_.request_suffix;
  if (kernel_->node_.averaged || ApplyKernel::ThreadAveraged()) return Submit(absl::OkStatus());
  average_ = std::make_unique<SparseAverage>(context_, engine_, request_name_);
  ToHost(context_, {context_->input(kernel_->node_.gradient), context_->input(kernel_->indices_)},
         [this](const absl::Status& status, const TensorList& own) {
           own_ = own;
           Submit(status);
         });
}

void SparseApplyKernel::Step::Submit(const absl::Status& copied) {
  if (!copied.ok()) return Finish(copied);
  auto group = RequestGroup::OfKernel(engine_, context_);
  if (average_ != nullptr) {
    // Keeps duplicates, which stock kernels apply one by one. If all ranks have the same rows,
    // because a custom loop's data are not divided, they are applied once.
    const absl::Status status = average_->AddTo(group.get(), own_[0], own_[1], TableRows(),
                                                /*weight=*/1, Duplicates::kKeepUnlessIdentical);
    if (!status.ok()) return Finish(status);
  }
  if (use_.first_apply) {
    initial_broadcast_.AddBroadcasts(context_, kernel_->node_.ref_variable, &use_, group.get());
  }
  if (average_ == nullptr && initial_broadcast_.empty()) return Update(absl::OkStatus());
  RequestGroup::Submit(std::move(group), "'" + use_.name + "' was averaged",
                       [this](const absl::Status& status) { OnExchanged(status); });
}

// -1 for a variable without a value, which the stock kernel reports.
int64_t SparseApplyKernel::Step::TableRows() const {
  Tensor value;
  return ReadState(context_, 0, &value) && value.dims() > 0 ? value.dim_size(0) : -1;
}

void SparseApplyKernel::Step::OnExchanged(const absl::Status& status) {
  if (!status.ok() || average_ == nullptr) return Update(status);
  average_->Finish([this](const absl::Status& averaged) { OnAveraged(averaged); });
}

void SparseApplyKernel::Step::OnAveraged(const absl::Status& status) {
  if (!status.ok()) return Update(status);
  ToKernel(context_, {*average_->values(), *average_->indices()},
           [this](const absl::Status& copied, const TensorList& averages) {
             averages_ = averages;
             Update(copied);
           });
}

const Tensor& SparseApplyKernel::Step::values() const {
  if (average_ == nullptr) return context_->input(kernel_->node_.gradient);
  return averages_[0];
}

const Tensor& SparseApplyKernel::Step::indices() const {
  if (average_ == nullptr) return context_->input(kernel_->indices_);
  return averages_[1];
}

void SparseApplyKernel::Step::Update(const absl::Status& status) {
  const absl::Status written = status.ok() ? initial_broadcast_.Write(context_) : status;
  if (!written.ok()) return Finish(written);
  const bool divided = kernel_->only_update_ && !on_gpu_ && HasIndexPerRow(values(), indices()) &&
                       divided_.Divide(context_, indices());
  const absl::Status updated = [&] {
    const Span span(Stage::kApply, use_.name, values().TotalBytes());
    return divided ? RunOnRows(divided_.PositionsOf(engine_->topology().rank)) : RunOnAllRows();
  }();
  if (!divided || !updated.ok()) return Finish(updated);
  auto group = RequestGroup::OfKernel(engine_, context_);
  divided_.AddTo(group.get(), context_, request_name_ + " rows");
  RequestGroup::Submit(std::move(group), "'" + use_.name + "' was updated",
                       [this](const absl::Status& ended) { OnDivided(ended); });
}

absl::Status SparseApplyKernel::Step::RunOnAllRows() {
  const bool sliced = !on_gpu_ && EnabledExtras().rows_ahead &&
                      HasIndexPerRow(values(), indices()) && values().dim_size(0) > kBlockOfRows;
  if (!sliced) {
    RunOnBlock(values(), indices());
    return context_->status();
  }
  const int64_t rows = values().dim_size(0);
  for (int64_t begin = 0; begin < rows && context_->status().ok(); begin += kBlockOfRows) {
    const int64_t end = std::min(begin + kBlockOfRows, rows);
    RunOnBlock(values().Slice(begin, end), indices().Slice(begin, end));
  }
  return context_->status();
}

// Runs the stock kernel at least once: even without rows it checks its inputs and puts a resource
// variable into copy-on-read mode.
absl::Status SparseApplyKernel::Step::RunOnRows(const std::vector<int64_t>& positions) {
  const auto rows = static_cast<int64_t>(positions.size());
  const int64_t block = std::min(rows, kBlockOfRows);
  tensorflow::TensorShape shape = values().shape();
  shape.set_dim(0, block);
  Tensor block_values, block_indices;
  TF_RETURN_IF_ERROR(context_->allocate_temp(values().dtype(), shape, &block_values));
  TF_RETURN_IF_ERROR(context_->allocate_temp(indices().dtype(), {block}, &block_indices));
  const size_t row_bytes = values().TotalBytes() / std::max<size_t>(1, values().dim_size(0));
  const size_t index_bytes = tensorflow::DataTypeSize(indices().dtype());
  const auto* const from = static_cast<const char*>(Data(values()));
  const auto* const index_from = static_cast<const char*>(Data(indices()));
  int64_t begin = 0;
  do {
    const int64_t n = std::min(kBlockOfRows, rows - begin);
    auto* to = static_cast<char*>(Data(block_values));
    auto* index_to = static_cast<char*>(Data(block_indices));
    for (int64_t i = begin; i < begin + n; ++i) {
      std::memcpy(to, from + positions[i] * row_bytes, row_bytes);
      std::memcpy(index_to, index_from + positions[i] * index_bytes, index_bytes);
      to += row_bytes;
      index_to += index_bytes;
    }
    RunOnBlock(n == block ? block_values : block_values.Slice(0, n),
               n == block ? block_indices : block_indices.Slice(0, n));
    begin += n;
  } while (begin < rows && context_->status().ok());
  return context_->status();
}

void SparseApplyKernel::Step::RunOnBlock(Tensor block_values, Tensor block_indices) {
  for (int input = 0; input < context_->num_inputs(); ++input) {
    Tensor state;
    if (!on_gpu_ && EnabledExtras().rows_ahead && IsState(context_, input) &&
        ReadState(context_, input, &state) && state.dims() > 0 && state.NumElements() != 0) {
      TouchRows(state, block_indices);
    }
  }
  RunOnInputs(kernel_->stock_.get(), context_,
              {{kernel_->node_.gradient, &block_values}, {kernel_->indices_, &block_indices}});
}

void SparseApplyKernel::Step::OnDivided(absl::Status status) {
  const absl::Status finished = divided_.Finish();
  if (status.ok()) status = finished;
  for (const int rank : divided_.absent()) {
    if (status.ok()) status = RunOnRows(divided_.PositionsOf(rank));
  }
  Finish(status);
}

void SparseApplyKernel::Step::Finish(const absl::Status& status) {
  if (!status.ok()) context_->SetStatus(status);
  if (!context_->status().ok()) VariableNames::Get().Undo(use_);
  const DoneCallback done = std::move(done_);
  delete this;
  done();
}

SparseApplyKernel::SparseApplyKernel(OpKernelConstruction* construction, const ApplyOp& op,
                                     std::unique_ptr<OpKernel> stock)
    : AsyncOpKernel(construction), stock_(std::move(stock)), node_(construction, op, *stock_) {
  int end = 0;
  OP_REQUIRES_OK(construction, stock_->InputRange("indices", &indices_, &end));
  only_update_ = !tensorflow::HasNodeAttr(def(), "_tf_mpi_one_of_many");
}

void SparseApplyKernel::ComputeAsync(OpKernelContext* context, DoneCallback done) {
  ApplyKernel::CountApplied();
  Engine* const engine = GetEngine();
  if (engine == nullptr || AreAveragesLeftToScript()) {  // null in a forked child
    RunStock(stock_.get(), context);
    return done();
  }
  (new Step(this, context, std::move(done), engine))->Start();
}

}  // namespace tfmpi
