// The rows of a sparse gradient: duplicates summed, exchanged, summed over ranks; or exchanged as
// they are.
//
// Where duplicates are summed, a rank's indices are distinct on the wire. All ranks run the same
// sums in the same order on the same bytes, so they get the same bits. Cost in proportion to the
// rows, whatever the table's size.

#ifndef TFMPI_CORE_REDUCTION_SPARSE_ROWS_H_
#define TFMPI_CORE_REDUCTION_SPARSE_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "tensorflow_patches/core/base/row_access.h"
#include "tensorflow_patches/core/base/types.h"

namespace tfmpi {

// One row of a gradient: its index travels with it.
struct RowFormat {
  DataType dtype = DataType::kFloat32;
  size_t elements = 0;

  size_t bytes() const { return elements * SizeOf(dtype); }
  size_t wire_elements() const { return elements * WireElements(dtype); }
  size_t wire_bytes() const { return wire_elements() * SizeOf(WireType(dtype)); }
  size_t packed_bytes() const { return sizeof(int64_t) + wire_bytes(); }
};

// What becomes of rows with one index. kKeep: all ranks' rows one after another, in rank order, for
// what is no sum of rows, as a norm of them or the squares of each. kKeepUnlessIdentical: likewise,
// but ranks that have been fed the same, and so have the same rows to the bit, are one process,
// which has them once.
enum class Duplicates { kSum, kKeep, kKeepUnlessIdentical };

// A row whose index an earlier row has.
struct Repeat {
  size_t first;  // the first row with that index
  size_t row;
};

// Those of `indices`, of which there are fewer than 2^31, in order.
std::vector<Repeat> FindRepeats(const std::vector<int64_t>& indices);

// One rank's rows: which they are is known at once, packed they are when it is known where to.
class OwnRows {
 public:
  OwnRows() = default;
  // `values` holds a row of `format` for each of `indices`; it outlives this object. Each counts
  // times `weight`; with 0 there are no rows.
  OwnRows(const RowFormat& format, std::vector<int64_t> indices, const void* values, double weight,
          Duplicates duplicates = Duplicates::kSum);

  bool every_row() const { return duplicates_to_ != Duplicates::kSum; }
  bool unless_identical() const { return duplicates_to_ == Duplicates::kKeepUnlessIdentical; }
  // In the order of their first appearance; distinct, unless it is every row.
  const std::vector<int64_t>& indices() const { return indices_; }
  size_t rows() const { return indices_.size(); }
  double weight() const { return weight_; }
  // Writes the rows [begin, end), duplicates summed, in wire form, times `scale`.
  void Pack(double scale, size_t begin, size_t end, char* to) const;

 private:
  struct Duplicate {
    size_t row;     // of `indices_`
    size_t source;  // the row of `values_` that is added to it
  };

  void Separate(const std::vector<Repeat>& repeats);
  // The place among `values_` of one of `indices_`.
  size_t Source(size_t row) const { return sources_.empty() ? row : sources_[row]; }
  const char* Value(size_t source) const {
    return static_cast<const char*>(values_) + source * format_.bytes();
  }

  RowFormat format_;
  const void* values_ = nullptr;
  double weight_ = 1;
  Duplicates duplicates_to_ = Duplicates::kSum;
  std::vector<int64_t> indices_;
  std::vector<size_t> sources_;        // see Source; empty if nothing is repeated
  std::vector<Duplicate> duplicates_;  // by row, those of one row in the order of the values
};

// The rows of all ranks, in rank order: what a sparse allgather makes of every rank's own. Each
// counts times 1/contributors, so that a sum of them is an average.
class GatheredRows : public RowAccess {
 public:
  // On the communication thread: memory for so many rows in wire form, which outlives the sum; null
  // if there is none.
  using Allocate = std::function<char*(size_t rows)>;

  GatheredRows(const RowFormat& format, OwnRows own, int rank, Allocate allocate)
      : format_(format), own_(std::move(own)), rank_(rank), allocate_(std::move(allocate)) {}

  const OwnRows& own() const { return own_; }
  // False after a request that ended well: there were more rows than its limit.
  bool gathered() const { return gathered_; }
  // False: there was no memory.
  bool has_memory() const { return rows_ != nullptr; }

  // Once the request has ended well and all is there, on any thread: sums the rows of each index,
  // in rank order, where the first of them is, and fills the gaps with the last rows; unless it is
  // every row. Returns how many there are.
  size_t Sum();
  // Of the rows, in their order, the same on all ranks.
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
  // Whether all ranks that contribute have the same rows.
  bool AreAlike() const;
  char* Row(size_t place) const { return rows_ + place * format_.wire_bytes(); }

  const RowFormat format_;
  const OwnRows own_;
  int rank_;
  double factor_ = 1;
  const Allocate allocate_;
  bool gathered_ = false;
  double scale_ = 1;
  int contributors_ = 1;
  std::vector<size_t> starts_;  // of each rank's rows; at the end, how many there are
  std::vector<int64_t> indices_;
  char* rows_ = nullptr;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_REDUCTION_SPARSE_ROWS_H_
