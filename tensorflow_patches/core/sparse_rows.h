// The rows of a sparse gradient: duplicates summed, packed for the wire, summed over ranks.
//
// On the wire a rank's rows are [n indices, int64][n rows, in wire form], its indices distinct. All
// ranks run the same sums in the same order on the same bytes, so they get the same bits. Pure
// functions, any thread; cost in proportion to the rows, whatever the table's size.

#ifndef TFMPI_CORE_SPARSE_ROWS_H_
#define TFMPI_CORE_SPARSE_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tensorflow_patches/core/types.h"

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

// Distinct indices in the order of their first appearance: a hash table of places in that order.
class DistinctIndices {
 public:
  explicit DistinctIndices(size_t most);
  // The place of `index`; the next one if it is new.
  size_t Place(int64_t index);
  const std::vector<int64_t>& indices() const { return indices_; }

 private:
  std::vector<int64_t> indices_;
  std::vector<int64_t> table_;  // places, or -1; a power of two, at most half of it used
  int shift_ = 0;
};

// One rank's rows: which they are is known at once, packed they are when it is known where to.
class OwnRows {
 public:
  OwnRows() = default;
  // `values` holds a row of `format` for each of `indices`; it outlives this object. Each counts
  // times `weight`; with 0 there are no rows.
  OwnRows(const RowFormat& format, const std::vector<int64_t>& indices, const void* values,
          double weight);

  // Distinct, in the order of their first appearance.
  const std::vector<int64_t>& indices() const { return indices_; }
  size_t rows() const { return indices_.size(); }
  size_t packed_bytes() const { return rows() * format_.packed_bytes(); }
  // Writes packed_bytes(): the rows, duplicates summed, times `scale`.
  void Pack(double scale, char* to) const;

 private:
  RowFormat format_;
  const void* values_ = nullptr;
  double weight_ = 1;
  std::vector<int64_t> indices_;
  std::vector<size_t> places_;  // of each row of values
};

// The sum over ranks, in rank order.
class RowSum {
 public:
  // `gathered`: every rank's packed rows, one rank after another; it outlives this object.
  RowSum(const RowFormat& format, const char* gathered, const std::vector<int64_t>& rows_by_rank);

  // In the order of their first appearance.
  const std::vector<int64_t>& indices() const { return distinct_.indices(); }
  // Writes a row of `format` for each of indices().
  void Write(void* values) const;

 private:
  const RowFormat format_;
  std::vector<const char*> rows_;  // of each packed row, in rank order
  std::vector<size_t> places_;
  DistinctIndices distinct_;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_SPARSE_ROWS_H_
