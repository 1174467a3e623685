#include "tensorflow_patches/core/sparse_rows.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>

#include "tensorflow_patches/core/reduce.h"

namespace tfmpi {
namespace {

// In blocks of a fixed size, which compilers vectorise at -O2 too.
template <typename T>
void AddAs(const char* from, char* to, size_t count) {
  constexpr size_t kBlock = 16;
  T a[kBlock], b[kBlock];
  for (; count >= kBlock; count -= kBlock) {
    std::memcpy(a, from, sizeof a);
    std::memcpy(b, to, sizeof b);
    for (size_t i = 0; i < kBlock; ++i) b[i] += a[i];
    std::memcpy(to, b, sizeof b);
    from += sizeof a;
    to += sizeof a;
  }
  std::memcpy(a, from, count * sizeof(T));
  std::memcpy(b, to, count * sizeof(T));
  for (size_t i = 0; i < count; ++i) b[i] += a[i];
  std::memcpy(to, b, count * sizeof(T));
}

// One row in wire form to another.
void AddRow(const RowFormat& format, const char* from, char* to) {
  if (WireType(format.dtype) == DataType::kFloat64) {
    AddAs<double>(from, to, format.wire_elements());
  } else {
    AddAs<float>(from, to, format.wire_elements());
  }
}

// Sums `rows[i]` into row places[i] of `sums`; places grow by one at each first appearance.
void SumRows(const RowFormat& format, const std::vector<const char*>& rows,
             const std::vector<size_t>& places, char* sums) {
  const size_t bytes = format.wire_bytes();
  size_t seen = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    char* const sum = sums + places[i] * bytes;
    if (places[i] == seen) {
      std::memcpy(sum, rows[i], bytes);
      ++seen;
    } else {
      AddRow(format, rows[i], sum);
    }
  }
}

size_t Total(const std::vector<int64_t>& rows_by_rank) {
  return static_cast<size_t>(std::accumulate(rows_by_rank.begin(), rows_by_rank.end(), int64_t{0}));
}

}  // namespace

DistinctIndices::DistinctIndices(size_t most) {
  int bits = 4;
  while ((size_t{1} << bits) < 2 * most) ++bits;
  table_.assign(size_t{1} << bits, -1);
  shift_ = 64 - bits;
  indices_.reserve(most);
}

size_t DistinctIndices::Place(int64_t index) {
  const size_t mask = table_.size() - 1;
  // Fibonacci hashing: the upper bits of the product depend on all bits of the index.
  size_t slot = (static_cast<uint64_t>(index) * 0x9e3779b97f4a7c15u) >> shift_;
  while (table_[slot] >= 0) {
    if (indices_[table_[slot]] == index) return static_cast<size_t>(table_[slot]);
    slot = (slot + 1) & mask;
  }
  table_[slot] = static_cast<int64_t>(indices_.size());
  indices_.push_back(index);
  return indices_.size() - 1;
}

OwnRows::OwnRows(const RowFormat& format, const std::vector<int64_t>& indices, const void* values,
                 double weight)
    : format_(format), values_(values), weight_(weight) {
  if (weight == 0) return;
  DistinctIndices distinct(indices.size());
  places_.reserve(indices.size());
  for (const int64_t index : indices) places_.push_back(distinct.Place(index));
  indices_ = distinct.indices();
}

void OwnRows::Pack(double scale, char* to) const {
  scale *= weight_;
  if (rows() != 0) std::memcpy(to, indices_.data(), rows() * sizeof(int64_t));
  char* const sums = to + rows() * sizeof(int64_t);
  if (rows() == places_.size()) {
    return tfmpi::Pack(format_.dtype, values_, sums, rows() * format_.elements, scale);
  }
  const char* own = static_cast<const char*>(values_);
  std::unique_ptr<char[]> scaled;
  if (!IsWireForm(format_.dtype) || scale != 1) {
    scaled.reset(new char[places_.size() * format_.wire_bytes()]);
    tfmpi::Pack(format_.dtype, values_, scaled.get(), places_.size() * format_.elements, scale);
    own = scaled.get();
  }
  std::vector<const char*> all(places_.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = own + i * format_.wire_bytes();
  SumRows(format_, all, places_, sums);
}

RowSum::RowSum(const RowFormat& format, const char* gathered,
               const std::vector<int64_t>& rows_by_rank)
    : format_(format), distinct_(Total(rows_by_rank)) {
  const size_t total = Total(rows_by_rank);
  rows_.reserve(total);
  places_.reserve(total);
  for (const int64_t count : rows_by_rank) {
    const auto n = static_cast<size_t>(count);
    const char* const rows = gathered + n * sizeof(int64_t);
    for (size_t i = 0; i < n; ++i) {
      int64_t index;
      std::memcpy(&index, gathered + i * sizeof index, sizeof index);
      places_.push_back(distinct_.Place(index));
      rows_.push_back(rows + i * format.wire_bytes());
    }
    gathered = rows + n * format.wire_bytes();
  }
}

void RowSum::Write(void* values) const {
  if (IsWireForm(format_.dtype)) {
    return SumRows(format_, rows_, places_, static_cast<char*>(values));
  }
  const std::unique_ptr<char[]> sums(new char[indices().size() * format_.wire_bytes()]);
  SumRows(format_, rows_, places_, sums.get());
  Unpack(format_.dtype, sums.get(), values, indices().size() * format_.elements, 1);
}

}  // namespace tfmpi
