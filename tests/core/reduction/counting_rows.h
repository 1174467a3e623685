// Rows for a sparse allgather, which check that each row is moved once and arrives unchanged.

#ifndef TFMPI_TESTS_CORE_REDUCTION_COUNTING_ROWS_H_
#define TFMPI_TESTS_CORE_REDUCTION_COUNTING_ROWS_H_

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tensorflow_patches/core/request/request.h"

namespace tfmpi {

// Rank r's row i is r * 1000 + i in all of its elements.
class CountingRows : public RowAccess {
 public:
  CountingRows(int rank, size_t width) : rank_(rank), width_(width) {}

  void Begin(const std::vector<int64_t>& rows, int) override {
    EXPECT_TRUE(seen_.empty());
    for (const int64_t n : rows) seen_.emplace_back(n, false);
  }
  void Put(int64_t begin, int64_t end, char* to) override {
    for (int64_t i = begin; i < end; ++i) {
      EXPECT_FALSE(seen_[rank_][i]);
      seen_[rank_][i] = true;
      const std::vector<int32_t> row(width_, rank_ * 1000 + static_cast<int32_t>(i));
      std::memcpy(to + (i - begin) * width_ * sizeof row[0], row.data(), width_ * sizeof row[0]);
    }
  }
  void Take(int rank, int64_t begin, int64_t end, const char* from) override {
    EXPECT_NE(rank, rank_);
    for (int64_t i = begin; i < end; ++i) {
      EXPECT_FALSE(seen_[rank][i]);
      seen_[rank][i] = true;
      const std::vector<int32_t> expected(width_, rank * 1000 + static_cast<int32_t>(i));
      EXPECT_EQ(std::memcmp(from + (i - begin) * width_ * sizeof expected[0], expected.data(),
                            width_ * sizeof expected[0]),
                0);
    }
  }

  std::vector<std::vector<bool>> seen_;  // by rank and row

 private:
  const int rank_;
  const size_t width_;
};

inline Request MakeSparseAllgather(const std::string& name, int64_t rows, size_t width,
                                   RowAccess* access) {
  Request request;
  request.name = name;
  request.signature.kind = OpKind::kSparseAllgather;
  request.signature.dtype = DataType::kInt32;
  request.signature.shape = {rows, static_cast<int64_t>(width)};
  request.rows = access;
  return request;
}

}  // namespace tfmpi

#endif  // TFMPI_TESTS_CORE_REDUCTION_COUNTING_ROWS_H_
