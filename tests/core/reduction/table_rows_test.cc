// Rows added to a table, compared with a plain loop. The tables end where their memory does, so
// that AddressSanitizer detects reads beyond it.

#include "tensorflow_patches/core/reduction/table_rows.h"

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace tfmpi {
namespace {

constexpr int64_t kTableRows = 300;
// Less than a cache line, a line, lines and a rest, by floats.
constexpr int64_t kWidths[] = {1, 7, 16, 19, 64, 131};
// Fewer than are asked for ahead, and more.
constexpr int64_t kCounts[] = {0, 1, 5, 33, 200};

template <typename T>
std::vector<T> MakeRows(int64_t rows, int64_t width, int seed) {
  std::mt19937 random(seed);
  std::normal_distribution<T> normal;
  std::vector<T> values(static_cast<size_t>(rows * width));
  std::generate(values.begin(), values.end(), [&] { return normal(random); });
  return values;
}

// Some twice, one after another too, and some in no table.
template <typename Index>
std::vector<Index> MakeIndices(int64_t count) {
  constexpr Index kOutside[] = {-1, kTableRows, std::numeric_limits<Index>::min(),
                                std::numeric_limits<Index>::max()};
  std::mt19937 random(static_cast<unsigned>(count));
  std::vector<Index> indices;
  for (int64_t i = 0; i < count; ++i) {
    const auto drawn = static_cast<Index>(random() % kTableRows);
    indices.push_back(i % 7 == 3 ? kOutside[i % 4] : i % 5 == 4 ? indices.back() : drawn);
  }
  return indices;
}

template <typename T, typename Index>
void ExpectAdded(int64_t count, int64_t width) {
  const std::vector<Index> indices = MakeIndices<Index>(count);
  const std::vector<T> values = MakeRows<T>(count, width, 1);
  std::vector<T> table = MakeRows<T>(kTableRows, width, 2);
  std::vector<T> expected = table;
  const T factor = static_cast<T>(-0.3);
  for (int64_t i = 0; i < count; ++i) {
    if (indices[i] < 0 || indices[i] >= kTableRows) continue;
    for (int64_t k = 0; k < width; ++k) {
      const T product = factor * values[i * width + k];
      expected[indices[i] * width + k] += product;
    }
  }
  AddRows(table.data(), kTableRows, indices.data(), count, values.data(), width, factor);
  EXPECT_EQ(table, expected) << count << " rows of " << width;
}

TEST(TableRows, AreAddedAsByOneLoop) {
  for (const int64_t count : kCounts) {
    for (const int64_t width : kWidths) {
      ExpectAdded<float, int32_t>(count, width);
      ExpectAdded<float, int64_t>(count, width);
      ExpectAdded<double, int32_t>(count, width);
      ExpectAdded<double, int64_t>(count, width);
    }
  }
}

}  // namespace
}  // namespace tfmpi
