#include "tensorflow_patches/core/sparse_rows.h"

#include <algorithm>
#include <cstring>
#include <memory>

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

void OwnRows::Pack(double scale, size_t begin, size_t end, char* to) const {
  scale *= weight_;
  const char* own = static_cast<const char*>(values_);
  if (in_parts()) {
    return tfmpi::Pack(format_.dtype, own + begin * format_.bytes(), to,
                       (end - begin) * format_.elements, scale);
  }
  std::unique_ptr<char[]> scaled;
  if (!IsWireForm(format_.dtype) || scale != 1) {
    scaled.reset(new char[places_.size() * format_.wire_bytes()]);
    tfmpi::Pack(format_.dtype, values_, scaled.get(), places_.size() * format_.elements, scale);
    own = scaled.get();
  }
  std::vector<const char*> all(places_.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = own + i * format_.wire_bytes();
  SumRows(format_, all, places_, to);
}

void GatheredRows::Begin(const std::vector<int64_t>& rows, int contributors) {
  gathered_ = true;
  scale_ = 1.0 / contributors;
  starts_.assign(1, 0);
  for (const int64_t n : rows) starts_.push_back(starts_.back() + static_cast<size_t>(n));
  indices_.resize(starts_.back());
  rows_ = allocate_(starts_.back());
  if (own_.rows() == 0) return;
  std::copy(own_.indices().begin(), own_.indices().end(), indices_.begin() + starts_[rank_]);
  if (!own_.in_parts()) {
    if (rows_ == nullptr) summed_.reset(new char[own_.rows() * format_.wire_bytes()]);
    own_.Pack(scale_, 0, own_.rows(), rows_ != nullptr ? Row(starts_[rank_]) : summed_.get());
  }
}

// A piece is [n indices, int64][n rows]. Packed only now, piece by piece: they are in the cache
// when they are copied.
void GatheredRows::Put(int64_t begin, int64_t end, char* to) {
  const auto first = static_cast<size_t>(begin), last = static_cast<size_t>(end);
  const size_t rows = last - first;
  std::memcpy(to, own_.indices().data() + first, rows * sizeof(int64_t));
  to += rows * sizeof(int64_t);
  if (rows_ == nullptr && own_.in_parts()) return own_.Pack(scale_, first, last, to);
  if (own_.in_parts()) own_.Pack(scale_, first, last, Row(starts_[rank_] + first));
  const char* const from =
      rows_ != nullptr ? Row(starts_[rank_] + first) : summed_.get() + first * format_.wire_bytes();
  std::memcpy(to, from, rows * format_.wire_bytes());
}

void GatheredRows::Take(int rank, int64_t begin, int64_t end, const char* from) {
  if (rows_ == nullptr) return;
  const auto rows = static_cast<size_t>(end - begin);
  const size_t place = starts_[rank] + static_cast<size_t>(begin);
  std::memcpy(indices_.data() + place, from, rows * sizeof(int64_t));
  std::memcpy(Row(place), from + rows * sizeof(int64_t), rows * format_.wire_bytes());
}

size_t GatheredRows::Sum() {
  DistinctIndices distinct(indices_.size());
  size_t sums = 0;
  for (size_t i = 0; i < indices_.size(); ++i) {
    const size_t place = distinct.Place(indices_[i]);
    if (place != sums) {
      AddRow(format_, Row(i), Row(place));
      continue;
    }
    if (i != sums) std::memcpy(Row(sums), Row(i), format_.wire_bytes());
    ++sums;
  }
  indices_ = distinct.indices();
  return sums;
}

}  // namespace tfmpi
