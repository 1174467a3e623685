// Rows of sparse gradients: packed, gathered by the engine, summed; compared with plain loops.

#include "tensorflow_patches/core/reduction/sparse_rows.h"

#include <algorithm>
#include <map>
#include <random>

#include "gtest/gtest.h"
#include "tensorflow_patches/core/cpu/reduce.h"
#include "tests/core/support/elements.h"
#include "tests/core/support/ranks.h"

namespace tfmpi {
namespace {

using Rows = std::map<int64_t, std::vector<float>>;

struct Gradient {
  std::vector<int64_t> indices;
  std::vector<float> values;
};

constexpr size_t kWidth = 19;  // a block and a rest

// Small whole numbers: their sums are exact in any order.
Gradient MakeGradient(int rank, int rows, int64_t table) {
  std::mt19937 random(rank + 1);
  Gradient gradient;
  for (int i = 0; i < rows; ++i) {
    gradient.indices.push_back(static_cast<int64_t>(random()) % table);
    for (size_t k = 0; k < kWidth; ++k) gradient.values.push_back(random() % 16);
  }
  return gradient;
}

void AddTo(const Gradient& gradient, float scale, Rows* rows) {
  for (size_t i = 0; i < gradient.indices.size(); ++i) {
    std::vector<float>& sum = (*rows)[gradient.indices[i]];
    sum.resize(kWidth);
    for (size_t k = 0; k < kWidth; ++k) sum[k] += scale * gradient.values[i * kWidth + k];
  }
}

Rows ToRows(const std::vector<int64_t>& indices, const std::vector<float>& values) {
  Rows rows;
  for (size_t i = 0; i < indices.size(); ++i) {
    EXPECT_EQ(rows.count(indices[i]), 0u) << "twice: " << indices[i];
    const auto begin = values.begin() + i * kWidth;
    rows[indices[i]] = std::vector<float>(begin, begin + kWidth);
  }
  return rows;
}

void ExpectClose(const Rows& rows, const Rows& expected) {
  ASSERT_EQ(rows.size(), expected.size());
  for (const auto& [index, row] : expected) {
    ASSERT_EQ(rows.count(index), 1u) << index;
    for (size_t k = 0; k < kWidth; ++k) EXPECT_FLOAT_EQ(rows.at(index)[k], row[k]) << index;
  }
}

TEST(SparseRowsTest, RepeatsAreFoundWhateverTheIndices) {
  const auto repeats = [](const std::vector<int64_t>& indices) {
    std::vector<std::pair<size_t, size_t>> pairs;
    for (const Repeat& repeat : FindRepeats(indices)) pairs.emplace_back(repeat.first, repeat.row);
    return pairs;
  };
  using Pairs = std::vector<std::pair<size_t, size_t>>;
  EXPECT_EQ(repeats({}), Pairs());
  const std::vector<int64_t> odd = {7, -1, int64_t{1} << 62, 0, INT64_MIN, INT64_MAX};
  EXPECT_EQ(repeats(odd), Pairs());
  EXPECT_EQ(repeats({7, 7, -1, 7, INT64_MIN, -1}), (Pairs{{0, 1}, {0, 3}, {2, 5}}));
  // One after another, and far apart: what hashes badly.
  for (const int64_t stride : {int64_t{1}, int64_t{1} << 32, int64_t{1} << 40}) {
    std::vector<int64_t> many;
    for (int64_t i = 0; i < 5000; ++i) many.push_back(i * stride);
    EXPECT_EQ(repeats(many), Pairs());
    many.push_back(many[1234]);
    EXPECT_EQ(repeats(many), (Pairs{{1234, 5000}}));
  }
  // Against a map, from few repeats to almost nothing else.
  std::mt19937 random(1);
  for (const int64_t table : {1000000, 3000, 50, 1}) {
    std::vector<int64_t> indices;
    std::map<int64_t, size_t> firsts;
    Pairs expected;
    for (size_t row = 0; row < 3000; ++row) {
      indices.push_back(static_cast<int64_t>(random()) % table);
      const auto [first, is_new] = firsts.emplace(indices.back(), row);
      if (!is_new) expected.emplace_back(first->second, row);
    }
    EXPECT_EQ(repeats(indices), expected) << table;
  }
}

// As a sparse allgather of one rank, in chunks of `chunk` rows.
std::vector<char> PutAll(GatheredRows* rows, size_t row_bytes, int64_t chunk) {
  const auto n = static_cast<int64_t>(rows->own().rows());
  rows->Begin({n}, 1);
  std::vector<char> wire;
  for (int64_t begin = 0; begin < n; begin += chunk) {
    const int64_t end = std::min(begin + chunk, n);
    std::vector<char> part(static_cast<size_t>(end - begin) * row_bytes);
    rows->Put(begin, end, part.data());
    wire.insert(wire.end(), part.begin(), part.end());
  }
  return wire;
}

TEST(SparseRowsTest, NoRowsAndNoWeightAreNothing) {
  const RowFormat format{DataType::kFloat32, kWidth};
  EXPECT_EQ(OwnRows(format, {}, nullptr, 1).rows(), 0u);
  const Gradient gradient = MakeGradient(0, 3, 10);
  const OwnRows none(format, gradient.indices, gradient.values.data(), 0);
  EXPECT_EQ(none.rows(), 0u);
  char memory;
  GatheredRows gathered(format, none, 0, [&](size_t rows) {
    EXPECT_EQ(rows, 0u);
    return &memory;
  });
  EXPECT_FALSE(gathered.gathered());
  EXPECT_TRUE(PutAll(&gathered, format.packed_bytes(), 1).empty());
  EXPECT_TRUE(gathered.gathered());
  EXPECT_EQ(gathered.Sum(), 0u);
  EXPECT_TRUE(gathered.indices().empty());
}

// Its peers wait for them.
TEST(SparseRowsTest, ARankWithoutMemoryForTheResultStillSendsItsRows) {
  const RowFormat format{DataType::kFloat32, kWidth};
  for (const int64_t table : {int64_t{1} << 40, int64_t{5}}) {  // distinct, and with duplicates
    const Gradient gradient = MakeGradient(0, 40, table);
    const OwnRows own(format, gradient.indices, gradient.values.data(), 1);
    EXPECT_EQ(own.rows() == 40, table != 5);
    std::vector<char> memory(own.rows() * format.wire_bytes());
    GatheredRows with(format, own, 0, [&](size_t) { return memory.data(); });
    GatheredRows without(format, own, 0, [](size_t) { return nullptr; });
    EXPECT_EQ(PutAll(&with, format.packed_bytes(), 3), PutAll(&without, format.packed_bytes(), 3));
    EXPECT_TRUE(with.has_memory());
    EXPECT_FALSE(without.has_memory());
  }
}

TEST(SparseRowsTest, HalfRowsAreSummedWide) {
  // 1 + 2^-7 three times, whose sum no bfloat16 holds.
  const RowFormat format{DataType::kBfloat16, 1};
  const std::vector<uint16_t> one_and = {0x3f81, 0x3f81, 0x3f81};
  const OwnRows own(format, {4, 4, 4}, one_and.data(), 1);
  ASSERT_EQ(format.packed_bytes(), sizeof(int64_t) + sizeof(float));
  float sum = 0;
  GatheredRows gathered(format, own, 0, [&](size_t) { return reinterpret_cast<char*>(&sum); });
  PutAll(&gathered, format.packed_bytes(), 1);
  EXPECT_EQ(gathered.Sum(), 1u);
  EXPECT_EQ(sum, 3.0234375f);
  own.Pack(1.0 / 3, 0, 1, reinterpret_cast<char*>(&sum));
  uint16_t third;
  Unpack(DataType::kBfloat16, &sum, &third, 1, 1);
  EXPECT_EQ(third, one_and[0]);
}

class SparseEngineTest : public TimedTest, public ::testing::WithParamInterface<int> {
 protected:
  // One rank's part: packs, gathers, sums. `limit` as of Signature.
  static Status Average(Engine& engine, const Gradient& gradient, float weight, int64_t limit,
                        Rows* rows) {
    const RowFormat format{DataType::kFloat32, kWidth};
    const OwnRows own(format, gradient.indices, gradient.values.data(), weight);
    std::vector<float> values;
    GatheredRows gathered(format, own, engine.topology().rank, [&](size_t all) {
      values.resize(all * kWidth + 1);
      return reinterpret_cast<char*>(values.data());
    });
    Request request;
    request.name = "rows";
    request.signature.kind = OpKind::kSparseAllgather;
    request.signature.shape = {static_cast<int64_t>(own.rows()), kWidth};
    request.signature.extra_row_bytes = sizeof(int64_t);
    request.signature.row_limit = limit;
    request.rows = &gathered;
    Ending ending = Submit(engine, std::move(request));
    const Status status = Await(ending);
    if (!status.ok() || !gathered.gathered()) return status;
    values.resize(gathered.Sum() * kWidth);
    *rows = ToRows(gathered.indices(), values);
    return status;
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, SparseEngineTest, ::testing::Values(1, 2, 4, 7));

TEST_P(SparseEngineTest, RaggedRowsWithDuplicatesGiveTheMeanOfAllRanks) {
  Ranks ranks(GetParam());
  const auto gradient = [](int rank, int step) {
    return MakeGradient(rank + 10 * step, (rank + step) % 3 * 20, 15);
  };
  for (int step = 0; step < 5; ++step) {
    Rows expected;
    for (int rank = 0; rank < ranks.size(); ++rank) {
      AddTo(gradient(rank, step), rank == 1 ? 0.5f : 1, &expected);
    }
    for (auto& [index, row] : expected) {
      for (float& value : row) value = value * static_cast<float>(1.0 / ranks.size());
    }
    std::vector<Rows> rows(ranks.size());
    ranks.Each([&](int rank, Engine& engine) {
      const float weight = rank == 1 ? 0.5f : 1;
      const Status status = Average(engine, gradient(rank, step), weight, -1, &rows[rank]);
      EXPECT_TRUE(status.ok()) << status.message();
    });
    ExpectClose(rows[0], expected);
    for (const Rows& other : rows) EXPECT_EQ(other, rows[0]) << "step " << step;
  }
  ranks.JoinAll();
}

// What one process has that has read one rank's batch after the other's.
TEST_P(SparseEngineTest, EveryRowOfEveryRankIsKept) {
  Ranks ranks(GetParam());
  const auto gradient = [](int rank) { return MakeGradient(rank, rank % 3 * 20 + 1, 5); };
  std::vector<int64_t> expected_indices;
  std::vector<float> expected;
  for (int rank = 0; rank < ranks.size(); ++rank) {
    const Gradient own = gradient(rank);
    expected_indices.insert(expected_indices.end(), own.indices.begin(), own.indices.end());
    for (const float value : own.values) expected.push_back(value / ranks.size());
  }
  ranks.Each([&](int rank, Engine& engine) {
    const RowFormat format{DataType::kFloat32, kWidth};
    const Gradient own = gradient(rank);
    std::vector<float> values;
    GatheredRows gathered(format,
                          OwnRows(format, own.indices, own.values.data(), 1, Duplicates::kKeep),
                          rank, [&](size_t all) {
                            values.resize(all * kWidth);
                            return reinterpret_cast<char*>(values.data());
                          });
    Request request;
    request.name = "every row";
    request.signature.kind = OpKind::kSparseAllgather;
    request.signature.shape = {static_cast<int64_t>(own.indices.size()), kWidth};
    request.signature.extra_row_bytes = sizeof(int64_t);
    request.signature.every_row = true;
    request.rows = &gathered;
    Ending ending = Submit(engine, std::move(request));
    ASSERT_TRUE(Await(ending).ok());
    EXPECT_EQ(gathered.Sum(), expected_indices.size());
    EXPECT_EQ(gathered.indices(), expected_indices);
    ASSERT_EQ(values.size(), expected.size());
    for (size_t i = 0; i < values.size(); ++i) EXPECT_FLOAT_EQ(values[i], expected[i]) << i;
  });
  ranks.JoinAll();
}

// Ranks with the same data count as one process; one differing row makes them parts of a batch.
TEST_P(SparseEngineTest, RowsThatAllRanksHaveAreThereOnceUnlessTheyArePartsOfABatch) {
  Ranks ranks(GetParam());
  const auto size = static_cast<size_t>(ranks.size());
  const auto rows_of = [&](Duplicates duplicates, bool differs) {
    size_t found = 0;
    ranks.Each([&](int rank, Engine& engine) {
      const RowFormat format{DataType::kFloat32, kWidth};
      Gradient own = MakeGradient(0, 6, 4);
      if (differs && rank == ranks.size() - 1) own.values.back() += 1;
      std::vector<float> values;
      GatheredRows gathered(format, OwnRows(format, own.indices, own.values.data(), 1, duplicates),
                            rank, [&](size_t all) {
                              values.resize(all * kWidth);
                              return reinterpret_cast<char*>(values.data());
                            });
      Request request;
      request.name = "alike";
      request.signature.kind = OpKind::kSparseAllgather;
      request.signature.shape = {6, kWidth};
      request.signature.extra_row_bytes = sizeof(int64_t);
      request.signature.every_row = true;
      request.rows = &gathered;
      Ending ending = Submit(engine, std::move(request));
      ASSERT_TRUE(Await(ending).ok());
      const size_t rows = gathered.Sum();
      EXPECT_EQ(gathered.indices().size(), rows);
      if (rows == 6) {
        values.resize(6 * kWidth);
        EXPECT_EQ(values, own.values) << "not divided";
      }
      if (rank == 0) found = rows;
    });
    return found;
  };
  EXPECT_EQ(rows_of(Duplicates::kKeepUnlessIdentical, false), 6u);
  EXPECT_EQ(rows_of(Duplicates::kKeepUnlessIdentical, size > 1), 6 * size);
  EXPECT_EQ(rows_of(Duplicates::kKeep, false), 6 * size);
  ranks.JoinAll();
}

TEST_P(SparseEngineTest, BeyondTheLimitNothingMovesAndAllRanksKnow) {
  Ranks ranks(GetParam());
  // Every rank has `own` rows; distinct, so that none is summed away before it travels.
  const auto run = [&](int64_t own, bool moves) {
    Gradient gradient;
    for (int64_t i = 0; i < own; ++i) gradient.indices.push_back(i);
    gradient.values.assign(gradient.indices.size() * kWidth, 1);
    ranks.Each([&](int, Engine& engine) {
      Rows rows;
      const Status status = Average(engine, gradient, 1, 3 * ranks.size(), &rows);
      EXPECT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(rows.size(), static_cast<size_t>(moves ? own : 0));
    });
  };
  run(3, true);
  run(4, false);
  run(2, true);
  run(4, false);
  ranks.JoinAll();
}

TEST_F(SparseEngineTest, ARankThatHasJoinedBringsNoRowsAndDoesNotCount) {
  Ranks ranks(3);
  Rows expected;
  for (int rank : {0, 2}) AddTo(MakeGradient(rank, 10, 6), 0.5f, &expected);
  ranks.Each([&](int rank, Engine& engine) {
    if (rank != 1) {
      for (const int64_t limit : {int64_t{1}, int64_t{-1}}) {
        Rows rows;
        EXPECT_TRUE(Average(engine, MakeGradient(rank, 10, 6), 1, limit, &rows).ok());
        EXPECT_EQ(rows, limit < 0 ? expected : Rows());
      }
    }
    EXPECT_TRUE(engine.Join().ok());
  });
}

}  // namespace
}  // namespace tfmpi
