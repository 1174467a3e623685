// Allgather, broadcast, barrier, several requests with one name, and invalid requests.

#include <atomic>
#include <cstring>

#include "gtest/gtest.h"
#include "tests/core/reduction/counting_rows.h"
#include "tests/core/support/elements.h"
#include "tests/core/support/job.h"
#include "tests/core/support/ranks.h"

namespace tfmpi {
namespace {

using std::chrono::milliseconds;

// The number of rows of `rank`: they differ, and some ranks have none.
int64_t Rows(int rank, int step) { return (rank + step) % 3; }

Request MakeAllgather(const std::string& name, const Shape& shape, const void* in,
                      std::function<void*(const std::vector<int64_t>&)> allocate) {
  Request request;
  request.name = name;
  request.signature.kind = OpKind::kAllgather;
  request.signature.dtype = DataType::kInt32;
  request.signature.shape = shape;
  request.input = in;
  request.allocate = std::move(allocate);
  return request;
}

Request MakeBroadcast(const std::string& name, DataType type, int root, std::vector<char>* data) {
  Request request;
  request.name = name;
  request.signature.kind = OpKind::kBroadcast;
  request.signature.dtype = type;
  request.signature.root = root;
  request.signature.shape = {static_cast<int64_t>(data->size() / SizeOf(type))};
  request.output = data->data();
  return request;
}

class OperationsTest : public TimedTest, public ::testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, OperationsTest, ::testing::Range(1, 9));

TEST_P(OperationsTest, AllgatherOfRaggedRows) {
  Ranks ranks(GetParam());
  constexpr int kColumns = 3;
  std::vector<uint64_t> brought(ranks.size());
  for (int step = 0; step < 6; ++step) {
    std::vector<int32_t> expected;
    for (int rank = 0; rank < ranks.size(); ++rank) {
      for (int64_t i = 0; i < Rows(rank, step) * kColumns; ++i) expected.push_back(rank * 1000 + i);
    }
    ranks.Each([&](int rank, Engine& engine) {
      std::vector<int32_t> in, out;
      for (int64_t i = 0; i < Rows(rank, step) * kColumns; ++i) in.push_back(rank * 1000 + i);
      int calls = 0;
      Ending ending =
          Submit(engine, MakeAllgather("g", {Rows(rank, step), kColumns}, in.data(),
                                       [&](const std::vector<int64_t>& rows) -> void* {
                                         ++calls;
                                         int64_t total = 0;
                                         for (int64_t n : rows) total += n;
                                         EXPECT_EQ(rows.size(), static_cast<size_t>(ranks.size()));
                                         out.resize(total * kColumns);
                                         return out.data();
                                       }));
      const Status status = Await(ending);
      EXPECT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(calls, 1);
      EXPECT_EQ(out, expected);
      brought[rank] += in.size() * sizeof in[0];
      EXPECT_EQ(engine.stats().bytes, brought[rank]);
    });
  }
  ranks.JoinAll();
}

TEST_P(OperationsTest, SparseAllgatherOfRaggedRows) {
  Ranks ranks(GetParam());
  for (int step = 0; step < 6; ++step) {
    ranks.Each([&](int rank, Engine& engine) {
      CountingRows rows(rank, 3);
      Ending ending = Submit(engine, MakeSparseAllgather("rows", Rows(rank, step), 3, &rows));
      const Status status = Await(ending);
      EXPECT_TRUE(status.ok()) << status.message();
      ASSERT_EQ(rows.seen_.size(), static_cast<size_t>(ranks.size()));
      for (int r = 0; r < ranks.size(); ++r) {
        EXPECT_EQ(rows.seen_[r], std::vector<bool>(Rows(r, step), true));
      }
    });
  }
  ranks.JoinAll();
}

TEST_F(OperationsTest, ARankThatHasJoinedBringsNoRows) {
  Ranks ranks(3);
  ranks.Each([&](int rank, Engine& engine) {
    if (rank != 1) {
      CountingRows rows(rank, 2);
      Ending ending = Submit(engine, MakeSparseAllgather("rows", 5, 2, &rows));
      EXPECT_TRUE(Await(ending).ok());
      EXPECT_EQ(rows.seen_[1].size(), 0u);
      EXPECT_EQ(rows.seen_[2 - rank], std::vector<bool>(5, true));
    }
    EXPECT_TRUE(engine.Join().ok());
  });
}

TEST_F(OperationsTest, RowsOfNothingCannotBeGathered) {
  Ranks ranks(2);
  ranks.Each([&](int rank, Engine& engine) {
    CountingRows rows(rank, 0);
    Ending ending = Submit(engine, MakeSparseAllgather("rows", 5, 0, &rows));
    const Status status = Await(ending);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_EQ(status.message(), "sparse allgather needs rows with at least one element");
  });
  ranks.JoinAll();
}

TEST_P(OperationsTest, BroadcastOfEveryTypeFromEveryRoot) {
  Ranks ranks(GetParam());
  ranks.Each([&](int rank, Engine& engine) {
    std::vector<std::vector<char>> data, expected;
    std::vector<Ending> endings;
    data.reserve(kNumDataTypes * 3 * static_cast<size_t>(ranks.size()));
    for (DataType type : kAllTypes) {
      for (int root = 0; root < ranks.size(); ++root) {
        for (size_t count : {0, 1, 33}) {
          const std::string name = std::string(Name(type)) + std::to_string(root * 100 + count);
          const Job job = {name, type, ReduceOp::kMax, count, root};
          data.push_back(MakeInput(job, rank));
          expected.push_back(MakeInput(job, root));
          endings.push_back(Submit(engine, MakeBroadcast(name, type, root, &data.back())));
        }
      }
    }
    EXPECT_EQ(AwaitAll(endings), "");
    EXPECT_EQ(data, expected) << "rank " << rank;
  });
  ranks.JoinAll();
}

TEST_P(OperationsTest, NoRankPassesABarrierBeforeAllHaveCome) {
  Ranks ranks(GetParam());
  std::atomic<int> arrived{0};
  ranks.Each([&](int rank, Engine& engine) {
    for (int round = 1; round <= 20; ++round) {
      std::this_thread::sleep_for(std::chrono::microseconds(rank * 100));
      ++arrived;
      Ending ending = Submit(engine, MakeBarrier("b"));
      EXPECT_TRUE(Await(ending).ok());
      EXPECT_GE(arrived, round * ranks.size());
    }
  });
  ranks.JoinAll();
}

// One name, many pending requests: the n-th of one rank matches the n-th of all others.
TEST_P(OperationsTest, RequestsOfOneNameRunInOrder) {
  constexpr int kRequests = 50;
  Ranks ranks(GetParam());
  ranks.Each([&](int rank, Engine& engine) {
    std::vector<std::vector<char>> inputs, outputs(kRequests);
    std::vector<Ending> endings;
    std::vector<int> order;  // of completion; the communication thread alone writes it
    std::vector<Job> jobs;
    for (int i = 0; i < kRequests; ++i) {
      jobs.push_back({"w", DataType::kFloat64, ReduceOp::kSum, 3, i});
      inputs.push_back(MakeInput(jobs[i], rank));
      outputs[i].resize(inputs[i].size());
    }
    for (int i = 0; i < kRequests; ++i) {
      auto promise = std::make_shared<std::promise<Status>>();
      endings.push_back(promise->get_future());
      Request request = MakeRequest(jobs[i], inputs[i].data(), outputs[i].data());
      request.done = [&order, promise, i](const Status& status) {
        order.push_back(i);
        promise->set_value(status);
      };
      engine.Submit(std::move(request));
      if (i % 7 == rank % 7) std::this_thread::sleep_for(std::chrono::microseconds(300));
    }
    EXPECT_EQ(AwaitAll(endings), "");
    for (int i = 0; i < kRequests; ++i) {
      EXPECT_EQ(order[i], i);
      EXPECT_EQ(CheckOutput(jobs[i], AllRanks(ranks.size()), outputs[i].data()), "") << i;
    }
  });
  ranks.JoinAll();
}

TEST_P(OperationsTest, DoneMaySubmitTheNextRequest) {
  constexpr int kLinks = 100;
  Ranks ranks(GetParam());
  ranks.Each([&](int rank, Engine& engine) {
    float in = static_cast<float>(rank), out = -1;
    int links = 0;
    std::promise<void> over;
    std::function<void(const Status&)> next = [&](const Status& status) {
      EXPECT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(engine.OnCommunicationThread(), links != 0);
      if (links++ == kLinks || !status.ok()) return over.set_value();
      // Half under one name, half under names of their own.
      Job job = {links % 2 == 0 ? "same" : "link" + std::to_string(links), DataType::kFloat32,
                 ReduceOp::kSum, 1, 0};
      Request request = MakeRequest(job, &in, &out);
      request.done = next;
      engine.Submit(std::move(request));
    };
    next(Status(Code::kOk, ""));
    if (over.get_future().wait_for(std::chrono::seconds(40)) != std::future_status::ready) {
      DieOfHang("the chain of requests broke");
    }
    EXPECT_EQ(out, static_cast<float>(ranks.size() * (ranks.size() - 1)) / 2);
  });
  ranks.JoinAll();
}

class EngineTest : public TimedTest {};

TEST_F(EngineTest, SeveralThreadsSubmitOnEachRank) {
  Ranks ranks(3);
  ranks.Each([&](int rank, Engine& engine) {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (int step = 0; step < 30; ++step) {
          const Job job = {"t" + std::to_string((t + step * rank) % 4 + 4 * step),
                           DataType::kFloat32, ReduceOp::kAverage, 17, step};
          const std::vector<char> in = MakeInput(job, rank);
          std::vector<char> out(in.size());
          Ending ending = Submit(engine, MakeRequest(job, in.data(), out.data()));
          EXPECT_TRUE(Await(ending).ok());
          EXPECT_EQ(CheckOutput(job, AllRanks(3), out.data()), "");
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
  ranks.JoinAll();
}

TEST_F(EngineTest, ARankWithoutRoomForAnAllgatherFailsAlone) {
  Ranks ranks(3);
  ranks.Each([&](int rank, Engine& engine) {
    std::vector<int32_t> in = {rank}, out;
    Ending ending = Submit(
        engine, MakeAllgather("g", {1}, in.data(), [&](const std::vector<int64_t>&) -> void* {
          if (rank == 1) return nullptr;
          out.resize(3);
          return out.data();
        }));
    EXPECT_EQ(Await(ending).ok(), rank != 1);
    EXPECT_EQ(out, rank == 1 ? std::vector<int32_t>() : std::vector<int32_t>({0, 1, 2}));
  });
  ranks.JoinAll();  // and the engine goes on
}

TEST_F(EngineTest, RequestsThatMakeNoSenseEndAtOnceOnTheirRank) {
  Ranks ranks(2);
  int32_t value = 1;
  Request average = MakeRequest({"i", DataType::kInt32, ReduceOp::kAverage, 1, 0}, &value, &value);
  Request boolean = MakeRequest({"b", DataType::kBool, ReduceOp::kSum, 1, 0}, &value, &value);
  Request complex = MakeRequest({"c", DataType::kComplex64, ReduceOp::kMax, 0, 0}, &value, &value);
  Request scalar = MakeAllgather("s", {}, &value, nullptr);
  std::vector<char> data(4);
  Request root = MakeBroadcast("r", DataType::kFloat32, 2, &data);
  Request negative = MakeBroadcast("n", DataType::kFloat32, -1, &data);
  Request rows = MakeAllgather("g", {1}, &value, nullptr);
  rows.signature.on_gpu = true;
  const std::pair<Request*, const char*> refused[] = {
      {&average, "the average of int32 values need not be an integer; use op='sum'"},
      {&boolean, "allreduce sum is not defined for bool"},
      {&complex, "allreduce max is not defined for complex64"},
      {&scalar, "allgather needs a tensor, not a number"},
      {&root, "broadcast 'r' from rank 2, but there are 2 ranks"},
      {&negative, "broadcast 'n' from rank -1, but there are 2 ranks"},
      {&rows, "allgather is not supported for GPU memory"},
  };
  for (const auto& [request, message] : refused) {
    Ending ending = Submit(ranks[1], *request);
    const Status status = Await(ending);
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << request->name;
    EXPECT_EQ(status.message(), message);
  }
  ranks.JoinAll();
}

TEST_F(EngineTest, AMismatchEndsOnEveryRankAndTheNextUseWorks) {
  Ranks ranks(3);
  ranks.Each([&](int rank, Engine& engine) {
    for (int round = 0; round < 30; ++round) {
      // Late ranks receive the error before or after they submit.
      std::this_thread::sleep_for(std::chrono::microseconds((rank * 7 + round * 3) % 11 * 100));
      const Job wrong = {"w", DataType::kFloat32, ReduceOp::kSum, rank == round % 3 ? 2u : 3u, 0};
      const Job right = {"w", DataType::kFloat32, ReduceOp::kSum, 5, round};
      const std::vector<char> in_wrong = MakeInput(wrong, rank), in = MakeInput(right, rank);
      std::vector<char> out_wrong(in_wrong.size()), out(in.size());
      Ending failing = Submit(engine, MakeRequest(wrong, in_wrong.data(), out_wrong.data()));
      Ending working = Submit(engine, MakeRequest(right, in.data(), out.data()));  // in flight, too
      const Status failed = Await(failing), worked = Await(working);
      EXPECT_EQ(failed.code(), Code::kInvalidArgument) << failed.message();
      EXPECT_NE(failed.message().find("[2]"), std::string::npos) << failed.message();
      EXPECT_TRUE(worked.ok()) << worked.message();
      EXPECT_EQ(CheckOutput(right, AllRanks(3), out.data()), "");
    }
  });
  ranks.JoinAll();
}

// A name with a number, used twice together by a rank that receives both errors first: neither
// request may be lost in the ready list of the other.
TEST_F(EngineTest, TwoRequestsOfOneNameAfterAnEarlyError) {
  EngineOptions options = TestOptions();
  options.coordinator.stall_timeout = milliseconds(200);
  Ranks ranks(2, options);
  const Job job = {"w", DataType::kFloat32, ReduceOp::kSum, 4, 0};
  std::vector<char> in[2] = {MakeInput(job, 0), MakeInput(job, 1)};
  std::vector<char> out[2] = {in[0], in[1]}, again[2] = {in[0], in[1]};
  auto submit = [&](int rank, std::vector<char>* to) {
    return Submit(ranks[rank], MakeRequest(job, in[rank].data(), to[rank].data()));
  };
  ranks.Each([&](int rank, Engine&) {  // the name gets its number
    Ending ending = submit(rank, out);
    EXPECT_TRUE(Await(ending).ok());
  });
  Ending stalled = submit(0, out);
  EXPECT_EQ(Await(stalled).code(), Code::kDeadlineExceeded);
  std::this_thread::sleep_for(milliseconds(100));  // rank 1 has the response list
  Ending early = submit(1, out), second = submit(1, again), first = submit(0, again);
  EXPECT_EQ(Await(early).code(), Code::kDeadlineExceeded);
  EXPECT_TRUE(Await(second).ok());
  EXPECT_TRUE(Await(first).ok());
  EXPECT_EQ(CheckOutput(job, AllRanks(2), again[1].data()), "");
  ranks.JoinAll();
}

}  // namespace
}  // namespace tfmpi
