// Operations of a subset of the ranks: the others neither submit them nor wait.

#include <cstring>

#include "gtest/gtest.h"
#include "tests/core/support/job.h"
#include "tests/core/support/ranks.h"

namespace tfmpi {
namespace {

std::shared_ptr<const Members> Of(std::vector<int32_t> ranks) {
  return std::make_shared<const Members>(std::move(ranks));
}

template <typename T>
Request MakeReduction(const std::string& name, ReduceOp op, DataType type,
                      std::shared_ptr<const Members> members, std::vector<T>* data) {
  Request request;
  request.name = name;
  request.signature.kind = OpKind::kAllreduce;
  request.signature.op = op;
  request.signature.dtype = type;
  request.signature.shape = {static_cast<int64_t>(data->size())};
  request.signature.members = std::move(members);
  request.purpose = Purpose::kScript;
  request.input = request.output = data->data();
  return request;
}

template <typename T>
T Reduced(ReduceOp op, T a, T b) {
  switch (op) {
    case ReduceOp::kAverage:
      return static_cast<T>((a + b) / 2);
    case ReduceOp::kSum:
    case ReduceOp::kPlainSum:
      return static_cast<T>(a + b);
    case ReduceOp::kMin:
      return std::min(a, b);
    case ReduceOp::kMax:
      return std::max(a, b);
    case ReduceOp::kProduct:
      return static_cast<T>(a * b);
  }
  return T();
}

class MembersTest : public TimedTest {};

// Negative on all ranks, or positive on all: zeros of a rank that is not a member would show.
template <typename T>
void ReduceInTwoSets(DataType type, T sign, bool averages) {
  Ranks ranks(4);
  for (int step = 0; step < 3; ++step) {
    ranks.Each([&](int rank, Engine& engine) {
      const int other = rank ^ 2;  // of the sets {0, 2} and {1, 3}
      std::vector<Ending> endings;
      std::vector<std::vector<T>> data;
      data.reserve(kNumReduceOps);
      std::vector<ReduceOp> ops;
      for (int op = averages ? 0 : 1; op < kNumReduceOps; ++op) {
        ops.push_back(static_cast<ReduceOp>(op));
        data.emplace_back(5, static_cast<T>(sign * (rank + 2)));
        endings.push_back(Submit(
            engine, MakeReduction("of " + std::to_string(rank % 2) + " " + std::to_string(op),
                                  ops.back(), type, Of({rank % 2, rank % 2 + 2}), &data.back())));
      }
      EXPECT_EQ(AwaitAll(endings), "");
      for (size_t i = 0; i < ops.size(); ++i) {
        const T expected =
            Reduced(ops[i], static_cast<T>(sign * (rank + 2)), static_cast<T>(sign * (other + 2)));
        EXPECT_EQ(data[i], std::vector<T>(5, expected)) << Name(ops[i]) << " on rank " << rank;
      }
    });
  }
  ranks.JoinAll();
}

TEST_F(MembersTest, ReductionsOfTwoSetsAtOnce) {
  ReduceInTwoSets<float>(DataType::kFloat32, 1, true);
  ReduceInTwoSets<float>(DataType::kFloat32, -1, true);
  ReduceInTwoSets<double>(DataType::kFloat64, -1, true);
  ReduceInTwoSets<int32_t>(DataType::kInt32, 1, false);
  ReduceInTwoSets<int32_t>(DataType::kInt32, -1, false);
  ReduceInTwoSets<uint8_t>(DataType::kUint8, 1, false);
}

TEST_F(MembersTest, AllRanksReduceMeanwhileAndAfterwards) {
  Ranks ranks(3);
  for (int step = 0; step < 5; ++step) {
    ranks.Each([&](int rank, Engine& engine) {
      std::vector<Ending> endings;
      std::vector<float> all(4, static_cast<float>(rank));
      std::vector<float> some(4, static_cast<float>(rank));
      endings.push_back(
          Submit(engine, MakeReduction("all", ReduceOp::kSum, DataType::kFloat32, nullptr, &all)));
      if (rank != 1) {
        endings.push_back(Submit(
            engine, MakeReduction("some", ReduceOp::kSum, DataType::kFloat32, Of({0, 2}), &some)));
      }
      EXPECT_EQ(AwaitAll(endings), "");
      EXPECT_EQ(all, std::vector<float>(4, 3));
      EXPECT_EQ(some, std::vector<float>(4, rank == 1 ? 1 : 2));
    });
  }
  ranks.JoinAll();
}

TEST_F(MembersTest, GathersAndBroadcasts) {
  Ranks ranks(4);
  ranks.Each([&](int rank, Engine& engine) {
    if (rank == 0) return;
    std::vector<int32_t> own(rank, rank), out;
    Request gather;
    gather.name = "rows";
    gather.signature.kind = OpKind::kAllgather;
    gather.signature.dtype = DataType::kInt32;
    gather.signature.shape = {rank};
    gather.signature.members = Of({1, 2, 3});
    gather.input = own.data();
    gather.allocate = [&](const std::vector<int64_t>& rows) -> void* {
      out.resize(rows[0] + rows[1] + rows[2] + rows[3]);
      return out.data();
    };
    Ending gathered = Submit(engine, std::move(gather));
    EXPECT_TRUE(Await(gathered).ok());
    EXPECT_EQ(out, (std::vector<int32_t>{1, 2, 2, 3, 3, 3}));

    int32_t value = rank;
    Request broadcast;
    broadcast.name = "value";
    broadcast.signature.kind = OpKind::kBroadcast;
    broadcast.signature.dtype = DataType::kInt32;
    broadcast.signature.root = 2;
    broadcast.signature.shape = {1};
    broadcast.signature.members = Of({1, 2, 3});
    broadcast.output = &value;
    Ending received = Submit(engine, std::move(broadcast));
    EXPECT_TRUE(Await(received).ok());
    EXPECT_EQ(value, 2);
  });
  ranks.JoinAll();
}

TEST_F(MembersTest, WhatMakesNoSenseIsRefused) {
  Ranks ranks(2);
  std::vector<float> data(1);
  Request request =
      MakeReduction("none", ReduceOp::kSum, DataType::kFloat32, Of(std::vector<int32_t>()), &data);
  const auto expect_refusal = [&](const std::string& message) {
    Ending ending = Submit(ranks[0], request);
    const Status status = Await(ending);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_EQ(status.message(), message);
  };
  expect_refusal("an operation of a subset of ranks needs at least one rank and host memory");
  request.name = "other root";
  request.signature.kind = OpKind::kBroadcast;
  request.signature.members = Of({0});
  request.signature.root = 1;
  expect_refusal("broadcast of float32 [1] from rank 1 among ranks 0: that rank is not a member");
  ranks.JoinAll();
}

TEST_F(MembersTest, RanksThatDisagreeOnTheSetHearSo) {
  Ranks ranks(2);
  ranks.Each([&](int rank, Engine& engine) {
    std::vector<float> data(1);
    Ending ending = Submit(engine, MakeReduction("w", ReduceOp::kSum, DataType::kFloat32,
                                                 rank == 0 ? Of({0, 1}) : nullptr, &data));
    const Status status = Await(ending);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_NE(status.message().find("among ranks 0 1"), std::string::npos) << status.message();
  });
  ranks.JoinAll();
}

}  // namespace
}  // namespace tfmpi
