// The measurements of `python -m tensorflow.mpi bench`, with ranks as threads.

#include "tensorflow_patches/core/bench/bench.h"

#include "gtest/gtest.h"
#include "tests/core/support/decorated.h"
#include "tests/core/support/ranks.h"

namespace tfmpi {
namespace {

class BenchTest : public TimedTest {};

BenchCase Small(OpKind kind, DataType dtype) {
  BenchCase small;
  small.kind = kind;
  small.dtype = dtype;
  small.count = 1000;
  small.tensors = 3;
  small.direct_rounds = 4;
  small.engine_rounds = 2;
  small.budget = 0;
  return small;
}

TEST_F(BenchTest, EveryRankGetsTheSameSamples) {
  Ranks ranks(3);
  for (OpKind kind : {OpKind::kAllreduce, OpKind::kAllgather}) {
    for (DataType dtype : {DataType::kFloat32, DataType::kFloat64, DataType::kInt32,
                           DataType::kInt64, DataType::kBfloat16, DataType::kFloat16}) {
      std::vector<BenchResult> results(3);
      ranks.Each([&](int rank, Engine& engine) {
        const Status status = RunBench(&engine, Small(kind, dtype), &results[rank]);
        EXPECT_TRUE(status.ok()) << status.message();
      });
      for (const BenchResult& result : results) {
        EXPECT_EQ(result.seconds[static_cast<int>(BenchWay::kEngine)].size(), 3u);
        for (int way = 0; way < kNumBenchWays; ++way) {
          EXPECT_EQ(result.seconds[way], results[0].seconds[way]);
          for (double seconds : result.seconds[way]) EXPECT_GT(seconds, 0);
        }
      }
      const bool plain = kind == OpKind::kAllreduce && SizeOf(dtype) > 2;
      EXPECT_EQ(results[0].seconds[static_cast<int>(BenchWay::kPlain)].size(), plain ? 3u : 0u);
    }
  }
  ranks.JoinAll();
}

// Passes everything on, and spoils the last byte of long sums on rank 1.
class Spoiling : public Decorated {
 public:
  Spoiling(std::unique_ptr<Transport> next, int rank) : Decorated(std::move(next)), rank_(rank) {}

  Status Allreduce(const void* in, void* out, const Reduction& reduction,
                   TimePoint deadline) override {
    const Status status = next_->Allreduce(in, out, reduction, deadline);
    const size_t bytes = reduction.count * SizeOf(reduction.type);
    if (rank_ == 1 && reduction.count > 10) static_cast<char*>(out)[bytes - 1] ^= 1;
    return status;
  }

 private:
  const int rank_;
};

TEST_F(BenchTest, AWrongSumIsFound) {
  Ranks ranks(2, TestOptions(), [](std::unique_ptr<Transport> next, int rank) {
    return std::make_unique<Spoiling>(std::move(next), rank);
  });
  ranks.Each([](int rank, Engine& engine) {
    BenchResult result;
    BenchCase small = Small(OpKind::kAllreduce, DataType::kFloat32);
    small.timeout = 1;
    const Status status = RunBench(&engine, small, &result);
    EXPECT_EQ(status.code(), rank == 1 ? Code::kInternal : Code::kDeadlineExceeded);
    if (rank == 1) {
      EXPECT_NE(status.message().find("wrong result"), std::string::npos);
    }
  });
}

TEST_F(BenchTest, WithoutMemoryNoRankMeasures) {
  if (TFMPI_SANITIZED) GTEST_SKIP() << "a sanitizer ends the process instead";
  Ranks ranks(2);
  for (OpKind kind : {OpKind::kAllreduce, OpKind::kAllgather}) {
    ranks.Each([&](int, Engine& engine) {
      BenchResult result;
      BenchCase large = Small(kind, DataType::kFloat32);
      large.count = size_t{1} << 48;  // more bytes than a process can address
      const Status status = RunBench(&engine, large, &result);
      EXPECT_EQ(status.code(), Code::kUnavailable);
      EXPECT_NE(status.message().find(" x 3 found no memory for "), std::string::npos)
          << status.message();
      EXPECT_NE(status.message().find(" bytes; use smaller --sizes"), std::string::npos);
    });
  }
  ranks.JoinAll();
}

TEST_F(BenchTest, RanksThatMeasureDifferentThingsDoNotHang) {
  Ranks ranks(2);
  ranks.Each([](int rank, Engine& engine) {
    BenchResult result;
    BenchCase small = Small(OpKind::kAllreduce, DataType::kFloat32);
    small.count += rank;
    small.timeout = 0.2;
    EXPECT_EQ(RunBench(&engine, small, &result).code(), Code::kDeadlineExceeded);
  });
}

}  // namespace
}  // namespace tfmpi
