// The rows of a sparse gradient: either duplicates are summed, and then the rows are exchanged and
// summed over ranks; or the rows are exchanged unchanged.
//
// If duplicates are summed, the indices that a rank sends are distinct. All ranks compute the same
// sums in the same order from the same bytes, so they get the same bits. The cost is proportional
// to the number of rows, not to the size of the table.

#ifndef TFMPI_CORE_REDUCTION_SPARSE_ROWS_H_
#define TFMPI_CORE_REDUCTION_SPARSE_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "tensorflow_patches/core/base/row_access.h"
#include "tensorflow_patches/core/base/types.h"

namespace tfmpi {

// One row of a gradient; its index is sent with it.
struct RowFormat {
  DataType dtype = DataType::kFloat32;
  size_t elements = 0;

  size_t bytes() const { return elements * SizeOf(dtype); }
  size_t wire_elements() const { return elements * WireElements(dtype); }
  size_t wire_bytes() const { return WireBytes(dtype, elements); }
  size_t packed_bytes() const { return sizeof(int64_t) + wire_bytes(); }
};

// How to handle rows with the same index. kSum: as one row, their sum. kKeep: the rows of all ranks
// one after another, in rank order, for anything that is not a sum of rows, such as a norm or the
// squares of each row. kKeepUnlessIdentical: like kKeep, but if the rows of all contributing ranks
// are bitwise identical, the ranks have had the same data, and only one rank's rows are kept.
enum class Duplicates { kSum, kKeep, kKeepUnlessIdentical };

// A row whose index occurs in an earlier row.
struct Repeat {
  size_t first;  // the first row with that index
  size_t row;
};

// The repeats in `indices`, in order. `indices` has fewer than 2^31 elements.
std::vector<Repeat> FindRepeats(const std::vector<int64_t>& indices);

// One rank's rows. Repeated indices (kSum) are found at construction; Pack sums their rows.
class OwnRows {
 public:
  OwnRows() = default;
  // `values` contains a row of `format` for each of `indices` and outlives this object. Each row is
  // multiplied by `weight`; with 0 there are no rows.
  OwnRows(const RowFormat& format, std::vector<int64_t> indices, const void* values, double weight,
          Duplicates duplicates = Duplicates::kSum);

  bool every_row() const { return handling_ != Duplicates::kSum; }
  bool unless_identical() const { return handling_ == Duplicates::kKeepUnlessIdentical; }
  // In the order of first occurrence; distinct, unless every row is kept.
  const std::vector<int64_t>& indices() const { return indices_; }
  size_t rows() const { return indices_.size(); }
  double weight() const { return weight_; }
  // Writes the rows [begin, end) in wire form, multiplied by `scale` and the weight, and, unless
  // every row is kept, with duplicates summed.
  void Pack(double scale, size_t begin, size_t end, char* to) const;

 private:
  struct Duplicate {
    size_t row;     // an index into `indices_`
    size_t source;  // the row of `values_` to add to it
  };

  void Separate(const std::vector<Repeat>& repeats);
  // The row of `values_` for an index into `indices_`.
  size_t Source(size_t row) const { return sources_.empty() ? row : sources_[row]; }
  const char* Value(size_t source) const {
    return static_cast<const char*>(values_) + source * format_.bytes();
  }

  RowFormat format_;
  const void* values_ = nullptr;
  double weight_ = 1;
  Duplicates handling_ = Duplicates::kSum;
  std::vector<int64_t> indices_;
  std::vector<size_t> sources_;        // see Source; empty if no index is repeated
  std::vector<Duplicate> duplicates_;  // by row, and for one row in the order of the values
};

// The rows of all ranks, in rank order: the result of a sparse allgather. Each is multiplied by its
// rank's weight and by 1/contributors, so that their sum is an average.
class GatheredRows : public RowAccess {
 public:
  // Called on the communication thread, again if the request is repeated after a death: returns
  // memory for `rows` rows in wire form, for as long as rows() is used; null if there is none.
  using Allocate = std::function<char*(size_t rows)>;

  GatheredRows(const RowFormat& format, OwnRows own, int rank, Allocate allocate)
      : format_(format), own_(std::move(own)), rank_(rank), allocate_(std::move(allocate)) {}

  const OwnRows& own() const { return own_; }
  // Whether Begin was called. It is not if the request exceeded its row limit and so ended with ok.
  bool gathered() const { return gathered_; }
  // After Begin: whether the allocation succeeded.
  bool has_memory() const { return rows_ != nullptr; }

  // Call it once after the request has ended with ok, if has_memory(), on any thread. Sums the rows
  // of each index, in rank order, into the first of them and fills the gaps with the last rows. If
  // every row is kept, it only applies kKeepUnlessIdentical. Returns the number of rows.
  size_t Sum();
  // The indices of the rows, in order, the same on all ranks.
  const std::vector<int64_t>& indices() const { return indices_; }
  const char* rows() const { return rows_; }

  double Weight() const override { return own_.weight(); }
  void Prepare(int rank, double factor) override {
    rank_ = rank;
    factor_ = factor;
  }
  void Begin(const std::vector<int64_t>& rows, int contributors) override;
  void Put(int64_t begin, int64_t end, char* to) override;
  void Take(int rank, int64_t begin, int64_t end, const char* from) override;

 private:
  bool AreIdentical() const;
  char* Row(size_t place) const { return rows_ + place * format_.wire_bytes(); }

  const RowFormat format_;
  const OwnRows own_;
  int rank_;
  double factor_ = 1;
  const Allocate allocate_;
  bool gathered_ = false;
  double scale_ = 1;
  int contributors_ = 1;
  std::vector<size_t> starts_;  // of each rank's rows; at the end, the total
  std::vector<int64_t> indices_;
  char* rows_ = nullptr;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_REDUCTION_SPARSE_ROWS_H_
