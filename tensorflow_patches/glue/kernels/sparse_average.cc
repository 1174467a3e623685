#include "tensorflow_patches/glue/kernels/sparse_average.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "tensorflow_patches/core/cpu/reduce.h"
#include "tensorflow_patches/core/observability/timeline.h"
#include "tensorflow_patches/glue/kernels/average_kernel.h"

namespace tfmpi {
namespace {

using tensorflow::Tensor;
using tensorflow::TensorShape;

std::atomic<SparseMode> g_mode{SparseMode::kAuto};

template <typename Index>
std::vector<int64_t> Widen(const Tensor& indices) {
  const auto flat = indices.flat<Index>();
  return std::vector<int64_t>(flat.data(), flat.data() + flat.size());
}

// The number 1 in the wire form of any type; a complex 1 has a second element, 0.
struct One {
  float single[2] = {1, 0};
  double wide[2] = {1, 0};

  const void* in(DataType wire) const {
    if (wire == DataType::kFloat64) return wide;
    return single;
  }
};

bool IsZero(const char* data, size_t bytes) {
  return std::all_of(data, data + bytes, [](char byte) { return byte == 0; });
}

}  // namespace

std::vector<int64_t> WideIndices(const Tensor& indices) {
  return indices.dtype() == tensorflow::DT_INT32 ? Widen<int32_t>(indices)
                                                 : Widen<int64_t>(indices);
}

Request GatherRequest(std::string name, const RowFormat& format, const Shape& row, int64_t limit,
                      GatheredRows* gathered) {
  Request request;
  request.name = std::move(name);
  request.signature.kind = OpKind::kSparseAllgather;
  request.signature.dtype = format.dtype;
  request.signature.shape = row;
  request.signature.shape.insert(request.signature.shape.begin(),
                                 static_cast<int64_t>(gathered->own().rows()));
  request.signature.extra_row_bytes = static_cast<int32_t>(format.packed_bytes() - format.bytes());
  request.signature.row_limit = gathered->own().every_row() ? -1 : limit;
  request.signature.every_row = gathered->own().every_row();
  request.rows = gathered;
  return request;
}

void SparseAverage::SetMode(SparseMode mode) { g_mode = mode; }

absl::Status SparseAverage::Check(const Tensor& values, const Tensor& indices) {
  value_type_ = values.dtype();
  index_type_ = indices.dtype();
  TF_RETURN_IF_ERROR(CheckCanAverage(name_, value_type_, &format_.dtype));
  if (values.dims() < 1 || indices.dims() != 1 || values.dim_size(0) != indices.dim_size(0) ||
      (index_type_ != tensorflow::DT_INT32 && index_type_ != tensorflow::DT_INT64)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the sparse gradient of '", name_, "' has values ", values.shape().DebugString(),
        " for indices ", indices.shape().DebugString(), " of type ",
        tensorflow::DataTypeString(index_type_), "; it needs one int32 or int64 index per row"));
  }
  return absl::OkStatus();
}

absl::Status SparseAverage::AddTo(RequestGroup* group, const Tensor& values, const Tensor& indices,
                                  int64_t table_rows, double weight, Duplicates duplicates) {
  TF_RETURN_IF_ERROR(Check(values, indices));
  row_shape_ = values.shape();
  row_shape_.RemoveDim(0);
  format_.elements = static_cast<size_t>(row_shape_.num_elements());
  table_rows_ = table_rows;
  OwnRows own(format_, WideIndices(indices), Data(values), weight, duplicates);
  gathered_ = std::make_unique<GatheredRows>(format_, std::move(own), engine_->topology().rank,
                                             [this](size_t rows) { return AllocateRows(rows); });
  CountGradients(1);
  const bool sums = duplicates == Duplicates::kSum;  // a dense reduction can only sum
  if (g_mode == SparseMode::kDense && table_rows_ >= 0 && sums) return AddDense(group);
  group->AddHostRequest(
      GatherRequest(name_, format_, ToShape(row_shape_), RowLimit(), gathered_.get()));
  return absl::OkStatus();
}

// With more rows than this in total, reducing the whole table moves fewer bytes: a reduction moves
// every element twice per rank, a gather moves every row once. So memory of the table's size is
// allocated only where the rows would take about twice as much.
int64_t SparseAverage::RowLimit() const {
  if (g_mode != SparseMode::kAuto || table_rows_ < 0) return -1;
  const double element = static_cast<double>(SizeOf(WireType(format_.dtype)));
  const double dense = static_cast<double>(format_.wire_bytes()) + element;
  return static_cast<int64_t>(2 * static_cast<double>(table_rows_) * dense /
                              static_cast<double>(format_.packed_bytes()));
}

absl::Status SparseAverage::AddDense(RequestGroup* group) {
  is_dense_ = true;
  const int64_t width = static_cast<int64_t>(format_.elements) + 1;
  TF_RETURN_IF_ERROR(
      context_->allocate_temp(value_type_, TensorShape({table_rows_ * width}), &dense_, OnHost()));
  char* const rows = static_cast<char*>(Data(dense_));
  const size_t flag_bytes = SizeOf(format_.dtype);
  char* const flags = rows + static_cast<size_t>(table_rows_) * format_.bytes();
  std::memset(rows, 0, dense_.TotalBytes());
  const One one;
  const OwnRows& own = gathered_->own();
  const std::unique_ptr<char[]> packed(new char[own.rows() * format_.wire_bytes() + 1]);
  own.Pack(1, 0, own.rows(), packed.get());
  const char* row = packed.get();
  for (const int64_t index : own.indices()) {
    const char* const from = std::exchange(row, row + format_.wire_bytes());
    if (index < 0 || index >= table_rows_) {
      // Reported after the reduction, for which the other ranks wait.
      bad_index_ = absl::InvalidArgumentError(absl::StrCat(
          "index ", index, " of the gradient of '", name_, "' is not in [0, ", table_rows_, ")"));
      continue;
    }
    Unpack(format_.dtype, from, rows + index * format_.bytes(), format_.elements, 1);
    Unpack(format_.dtype, one.in(WireType(format_.dtype)), flags + index * flag_bytes, 1, 1);
  }
  Request request = RequestFor(OpKind::kAllreduce, name_ + " as dense", format_.dtype, dense_);
  request.signature.shape = {table_rows_, width};
  request.input = request.output = rows;
  request.signature.weighted = true;
  request.applied_weight = own.weight();
  group->AddHostRequest(std::move(request));
  return absl::OkStatus();
}

void SparseAverage::Finish(Done done) {
  if (is_dense_) return done(ExtractTouchedRows());
  if (gathered_->gathered()) return done(SumGathered());
  // There are too many rows. All ranks know all row counts, so all of them reduce the dense tensor.
  auto group = std::make_unique<RequestGroup>(engine_, context_->cancellation_manager(),
                                              *context_->runner());
  const absl::Status status = AddDense(group.get());
  if (!status.ok()) return done(status);
  RequestGroup::Submit(std::move(group), "'" + name_ + "' was averaged",
                       [this, done = std::move(done)](const absl::Status& ended) {
                         done(ended.ok() ? ExtractTouchedRows() : ended);
                       });
}

absl::Status SparseAverage::Allocate(int64_t rows) {
  TensorShape shape = row_shape_;
  shape.InsertDim(0, rows);
  return context_->allocate_temp(value_type_, shape, &values_, OnHost());
}

absl::Status SparseAverage::WriteIndices(const std::vector<int64_t>& from) {
  TF_RETURN_IF_ERROR(context_->allocate_temp(
      index_type_, TensorShape({static_cast<int64_t>(from.size())}), &indices_, OnHost()));
  if (index_type_ == tensorflow::DT_INT32) {
    std::copy(from.begin(), from.end(), indices_.flat<int32_t>().data());
  } else {
    std::copy(from.begin(), from.end(), indices_.flat<int64_t>().data());
  }
  return absl::OkStatus();
}

// On the communication thread. Returns the result's memory if rows are summed in their own type.
char* SparseAverage::AllocateRows(size_t rows) {
  if (!IsWireForm(format_.dtype)) {
    wide_.reset(new char[rows * format_.wire_bytes() + 1]);
    return wide_.get();
  }
  static char none;  // a tensor without elements has no memory
  if (!Allocate(static_cast<int64_t>(rows)).ok()) return nullptr;
  return values_.NumElements() == 0 ? &none : static_cast<char*>(Data(values_));
}

absl::Status SparseAverage::SumGathered() {
  const Span span(Stage::kUnpack, "sum of rows", 0);
  if (!gathered_->has_memory()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for the rows of all ranks of the gradient of '", name_,
                     "'; try a smaller batch, or fewer ranks per node"));
  }
  const auto rows = static_cast<int64_t>(gathered_->Sum());
  if (wide_ == nullptr) {
    if (values_.dim_size(0) != rows) values_ = values_.Slice(0, rows);
  } else {
    TF_RETURN_IF_ERROR(Allocate(rows));
    Unpack(format_.dtype, wide_.get(), Data(values_),
           gathered_->indices().size() * format_.elements, 1);
  }
  return WriteIndices(gathered_->indices());
}

absl::Status SparseAverage::ExtractTouchedRows() {
  if (!bad_index_.ok()) return bad_index_;
  const char* const rows = static_cast<const char*>(Data(dense_));
  const size_t flag_bytes = SizeOf(format_.dtype);
  const char* const flags = rows + static_cast<size_t>(table_rows_) * format_.bytes();
  std::vector<int64_t> touched;
  for (int64_t row = 0; row < table_rows_; ++row) {
    if (!IsZero(flags + row * flag_bytes, flag_bytes)) touched.push_back(row);
  }
  TF_RETURN_IF_ERROR(Allocate(static_cast<int64_t>(touched.size())));
  TF_RETURN_IF_ERROR(WriteIndices(touched));
  char* to = static_cast<char*>(Data(values_));
  for (const int64_t row : touched) {
    std::memcpy(to, rows + row * format_.bytes(), format_.bytes());
    to += format_.bytes();
  }
  dense_ = Tensor();
  return absl::OkStatus();
}

}  // namespace tfmpi
