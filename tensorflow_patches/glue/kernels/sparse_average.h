// The average of one sparse gradient over the ranks: takes this rank's rows with their indices, and
// returns the rows of all ranks. `Duplicates` (sparse_rows.h) says whether rows with the same index
// are summed; with kKeepUnlessIdentical, ranks that all sent the same rows count as one.
//
// A kernel creates an object on an inter-op thread, adds its request to a group with AddTo, and
// calls Finish on TensorFlow's runner when the group has ended with ok; the rows are summed there.
// Row for row, the result equals that of one process for the whole batch. The rows are gathered, at
// a cost proportional to their number. If duplicates are summed and the table's size is known, they
// are reduced as a dense tensor of that size where that moves fewer bytes (see SparseMode).

#ifndef TFMPI_GLUE_KERNELS_SPARSE_AVERAGE_H_
#define TFMPI_GLUE_KERNELS_SPARSE_AVERAGE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow_patches/core/reduction/sparse_rows.h"
#include "tensorflow_patches/glue/runtime/request_group.h"

namespace tfmpi {

// TF_MPI_SPARSE. kGather: never dense. kDense: always dense, if the table's size is known and
// duplicates are summed.
enum class SparseMode : int32_t { kAuto = 0, kGather = 1, kDense = 2 };

// Converts int32 or int64 indices.
std::vector<int64_t> WideIndices(const tensorflow::Tensor& indices);

// A sparse allgather whose result goes to `gathered`, which outlives the request. `row`: the shape
// of a row. `limit`: Signature::row_limit.
Request GatherRequest(std::string name, const RowFormat& format, const Shape& row, int64_t limit,
                      GatheredRows* gathered);

class SparseAverage {
 public:
  using Done = std::function<void(const absl::Status&)>;

  // One mode per process; set before kernels run.
  static void SetMode(SparseMode mode);

  // `context` and `engine` outlive it; `name` is the same on all ranks.
  SparseAverage(tensorflow::OpKernelContext* context, Engine* engine, std::string name)
      : context_(context), engine_(engine), name_(std::move(name)) {}

  // `values` [n, ...]: a row for each of `indices` [n], int32 or int64. `table_rows`: the first
  // dimension of the table, the same on all ranks; -1: unknown. This rank's rows are multiplied by
  // `weight`; with 0 the rank has no rows. `values` is read until Finish returns. `duplicates`: see
  // above; the same on all ranks.
  absl::Status AddTo(RequestGroup* group, const tensorflow::Tensor& values,
                     const tensorflow::Tensor& indices, int64_t table_rows, double weight,
                     Duplicates duplicates);
  // `done` runs exactly once, never on the communication thread; this object lives until then.
  void Finish(Done done);

  // The result, once done: [m, ...] and [m], the same bits on all ranks. If duplicates are summed,
  // no index occurs twice.
  tensorflow::Tensor* values() { return &values_; }
  tensorflow::Tensor* indices() { return &indices_; }

 private:
  absl::Status Check(const tensorflow::Tensor& values, const tensorflow::Tensor& indices);
  absl::Status AddDense(RequestGroup* group);
  int64_t RowLimit() const;
  absl::Status SumGathered();
  absl::Status ExtractTouchedRows();
  char* AllocateRows(size_t rows);
  absl::Status Allocate(int64_t rows);
  absl::Status WriteIndices(const std::vector<int64_t>& from);

  tensorflow::OpKernelContext* const context_;
  Engine* const engine_;
  const std::string name_;
  RowFormat format_;
  tensorflow::TensorShape row_shape_;
  int64_t table_rows_ = -1;
  tensorflow::DataType index_type_ = tensorflow::DT_INT64;
  tensorflow::DataType value_type_ = tensorflow::DT_FLOAT;

  std::unique_ptr<GatheredRows> gathered_;
  std::unique_ptr<char[]> wide_;  // the rows, if they are summed in another type
  bool is_dense_ = false;
  // [table rows, row elements], then [table rows] of flags: whether a row was touched.
  tensorflow::Tensor dense_;
  absl::Status bad_index_;
  tensorflow::Tensor values_;
  tensorflow::Tensor indices_;
};

}  // namespace tfmpi

#endif  // TFMPI_GLUE_KERNELS_SPARSE_AVERAGE_H_
