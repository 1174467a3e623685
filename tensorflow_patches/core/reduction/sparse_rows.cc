#include "tensorflow_patches/core/reduction/sparse_rows.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tensorflow_patches/core/cpu/reduce.h"

namespace tfmpi {
namespace {

constexpr size_t kBlockBytes = size_t{16} << 10;  // that Put packs and then copies at a time
constexpr size_t kMaxKept = size_t{256} << 10;    // slots of FindRepeats that each thread keeps

// Adds `count` numbers of type T in `from` to those in `to`; neither need be aligned. In blocks of
// a fixed size, which compilers vectorize even at -O2.
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

// Adds one row in wire form to another.
void AddRow(const RowFormat& format, const char* from, char* to) {
  if (WireType(format.dtype) == DataType::kFloat64) {
    AddAs<double>(from, to, format.wire_elements());
  } else {
    AddAs<float>(from, to, format.wire_elements());
  }
}

}  // namespace

std::vector<Repeat> FindRepeats(const std::vector<int64_t>& indices) {
  // Open addressing, at most a quarter full: a slot that is taken costs a mispredicted branch.
  int bits = 4;
  while ((size_t{1} << bits) < 4 * indices.size()) ++bits;
  // Kept between calls, up to kMaxKept: freeing it each time would make glibc consolidate the heap.
  thread_local std::vector<int32_t> firsts;
  firsts.assign(size_t{1} << bits, -1);
  std::vector<Repeat> repeats;
  for (size_t row = 0; row < indices.size(); ++row) {
    // Fibonacci hashing: the upper bits of the product depend on all bits of the index.
    size_t slot = (static_cast<uint64_t>(indices[row]) * 0x9e3779b97f4a7c15u) >> (64 - bits);
    int32_t first;
    while ((first = firsts[slot]) >= 0 && indices[first] != indices[row]) {
      slot = (slot + 1) & (firsts.size() - 1);
    }
    if (first < 0) {
      firsts[slot] = static_cast<int32_t>(row);
    } else {
      repeats.push_back({static_cast<size_t>(first), row});
    }
  }
  if (firsts.size() > kMaxKept) std::vector<int32_t>().swap(firsts);
  return repeats;
}

OwnRows::OwnRows(const RowFormat& format, std::vector<int64_t> indices, const void* values,
                 double weight, Duplicates duplicates)
    : format_(format), values_(values), weight_(weight), handling_(duplicates) {
  if (weight == 0) return;
  indices_ = std::move(indices);
  if (every_row()) return;
  const std::vector<Repeat> repeats = FindRepeats(indices_);
  if (!repeats.empty()) Separate(repeats);
}

// On entry `indices_` has the index of every row; on return, each index once.
void OwnRows::Separate(const std::vector<Repeat>& repeats) {
  std::vector<size_t> places(indices_.size());  // of each row that is no repeat
  sources_.reserve(indices_.size() - repeats.size());
  auto next = repeats.begin();
  for (size_t row = 0; row < indices_.size(); ++row) {
    if (next != repeats.end() && next->row == row) {
      duplicates_.push_back({places[next->first], row});
      ++next;
    } else {
      places[row] = sources_.size();
      indices_[sources_.size()] = indices_[row];
      sources_.push_back(row);
    }
  }
  indices_.resize(sources_.size());
  std::stable_sort(duplicates_.begin(), duplicates_.end(),
                   [](const Duplicate& a, const Duplicate& b) { return a.row < b.row; });
}

void OwnRows::Pack(double scale, size_t begin, size_t end, char* to) const {
  scale *= weight_;
  for (size_t row = begin; row < end;) {  // consecutive rows are packed together
    size_t last = row + 1;
    while (last < end && Source(last) - Source(row) == last - row) ++last;
    tfmpi::Pack(format_.dtype, Value(Source(row)), to + (row - begin) * format_.wire_bytes(),
                (last - row) * format_.elements, scale);
    row = last;
  }
  std::vector<char> scaled(duplicates_.empty() ? 0 : format_.wire_bytes());
  auto next = std::lower_bound(duplicates_.begin(), duplicates_.end(), begin,
                               [](const Duplicate& one, size_t row) { return one.row < row; });
  for (; next != duplicates_.end() && next->row < end; ++next) {
    tfmpi::Pack(format_.dtype, Value(next->source), scaled.data(), format_.elements, scale);
    AddRow(format_, scaled.data(), to + (next->row - begin) * format_.wire_bytes());
  }
}

void GatheredRows::Begin(const std::vector<int64_t>& rows, int contributors) {
  gathered_ = true;
  scale_ = factor_ / contributors;
  contributors_ = contributors;
  starts_.assign(1, 0);
  for (const int64_t n : rows) starts_.push_back(starts_.back() + static_cast<size_t>(n));
  indices_.resize(starts_.back());
  rows_ = allocate_(starts_.back());
  std::copy(own_.indices().begin(), own_.indices().end(), indices_.begin() + starts_[rank_]);
}

// A chunk is [n indices, int64][n rows]. The rows are packed only now, in blocks, so that they are
// in the cache when they are copied.
void GatheredRows::Put(int64_t begin, int64_t end, char* to) {
  const auto first = static_cast<size_t>(begin), last = static_cast<size_t>(end);
  const size_t rows = last - first;
  std::memcpy(to, own_.indices().data() + first, rows * sizeof(int64_t));
  to += rows * sizeof(int64_t);
  if (rows_ == nullptr) return own_.Pack(scale_, first, last, to);
  if (format_.wire_bytes() == 0) return;
  const size_t block = kBlockBytes / format_.wire_bytes() + 1;
  for (size_t row = first; row < last; row += block) {
    const size_t end_of_block = std::min(row + block, last);
    char* const packed = Row(starts_[rank_] + row);
    own_.Pack(scale_, row, end_of_block, packed);
    std::memcpy(to + (row - first) * format_.wire_bytes(), packed,
                (end_of_block - row) * format_.wire_bytes());
  }
}

void GatheredRows::Take(int rank, int64_t begin, int64_t end, const char* from) {
  if (rows_ == nullptr) return;
  const auto rows = static_cast<size_t>(end - begin);
  const size_t place = starts_[rank] + static_cast<size_t>(begin);
  std::memcpy(indices_.data() + place, from, rows * sizeof(int64_t));
  std::memcpy(Row(place), from + rows * sizeof(int64_t), rows * format_.wire_bytes());
}

bool GatheredRows::AreIdentical() const {
  const size_t rows = own_.rows();
  int identical = 0;
  for (size_t rank = 0; rank + 1 < starts_.size(); ++rank) {
    const size_t theirs = starts_[rank + 1] - starts_[rank];
    // Probably a rank that does not take part; if it does, `identical` stays below contributors_.
    if (theirs == 0 && rows != 0) continue;
    if (theirs != rows ||
        std::memcmp(indices_.data() + starts_[rank], own_.indices().data(),
                    rows * sizeof(int64_t)) != 0 ||
        std::memcmp(Row(starts_[rank]), Row(starts_[rank_]), rows * format_.wire_bytes()) != 0) {
      return false;
    }
    ++identical;
  }
  return identical == contributors_ && rows != 0;
}

size_t GatheredRows::Sum() {
  if (own_.every_row()) {
    if (contributors_ > 1 && own_.unless_identical() && AreIdentical()) {
      indices_ = own_.indices();
      own_.Pack(1, 0, own_.rows(), rows_);
    }
    return indices_.size();
  }
  std::vector<size_t> gaps;
  for (const Repeat& repeat : FindRepeats(indices_)) {
    AddRow(format_, Row(repeat.row), Row(repeat.first));
    gaps.push_back(repeat.row);
  }
  size_t rows = indices_.size();
  for (size_t gap = 0; gap < gaps.size(); ++gap) {
    // A gap at the end needs no row.
    for (; gap < gaps.size() && gaps.back() == rows - 1; --rows) gaps.pop_back();
    if (gap == gaps.size()) break;
    --rows;
    indices_[gaps[gap]] = indices_[rows];
    std::memcpy(Row(gaps[gap]), Row(rows), format_.wire_bytes());
  }
  indices_.resize(rows);
  return rows;
}

}  // namespace tfmpi
