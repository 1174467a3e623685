// The engine's allreduce with 1 to 8 ranks as threads: every dtype, every relevant count, any
// order.

#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <random>
#include <utility>

#include "gtest/gtest.h"
#include "tensorflow_patches/core/reduction/fusion.h"
#include "tests/core/agreement/steps.h"
#include "tests/core/support/decorated.h"
#include "tests/core/support/elements.h"
#include "tests/core/support/job.h"
#include "tests/core/support/ranks.h"

namespace tfmpi {
namespace {

// One rank's tensors for a list of jobs. Odd jobs are reduced in place.
struct Tensors {
  Tensors(const std::vector<Job>& jobs, int rank) {
    for (size_t i = 0; i < jobs.size(); ++i) {
      inputs.push_back(MakeInput(jobs[i], rank));
      outputs.push_back(i % 2 == 1 ? inputs[i] : std::vector<char>(inputs[i].size(), '\x7b'));
    }
  }
  const void* In(size_t i) const { return i % 2 == 1 ? outputs[i].data() : inputs[i].data(); }

  std::vector<std::vector<char>> inputs, outputs;
};

// Every rank submits all jobs, each in its own order; then every result must be correct and have
// the same bits on all ranks. `seed` differs between steps.
void RunStep(Ranks& ranks, const std::vector<Job>& jobs, int seed) {
  std::vector<std::unique_ptr<Tensors>> tensors(ranks.size());
  ranks.Each([&](int rank, Engine& engine) {
    tensors[rank] = std::make_unique<Tensors>(jobs, rank);
    std::vector<size_t> order(jobs.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::mt19937 random(seed * 100 + rank);
    std::shuffle(order.begin(), order.end(), random);
    std::vector<Ending> endings;
    for (size_t i : order) {
      endings.push_back(Submit(
          engine, MakeRequest(jobs[i], tensors[rank]->In(i), tensors[rank]->outputs[i].data())));
    }
    EXPECT_EQ(AwaitAll(endings), "");
  });
  for (size_t i = 0; i < jobs.size(); ++i) {
    EXPECT_EQ(CheckOutput(jobs[i], AllRanks(ranks.size()), tensors[0]->outputs[i].data()), "");
    for (int rank = 1; rank < ranks.size(); ++rank) {
      EXPECT_EQ(tensors[rank]->outputs[i], tensors[0]->outputs[i])
          << "rank " << rank << " has other bits than rank 0 in '" << jobs[i].name << "'";
    }
    for (int rank = 0; rank < ranks.size() && i % 2 == 0; ++rank) {
      EXPECT_EQ(tensors[rank]->inputs[i], MakeInput(jobs[i], rank)) << "the input was written to";
    }
  }
}

std::vector<ReduceOp> OpsOf(DataType type) {
  std::vector<ReduceOp> ops = {ReduceOp::kSum, ReduceOp::kPlainSum};
  if (IsFloating(type)) ops.push_back(ReduceOp::kAverage);
  if (!IsComplex(type)) ops.insert(ops.end(), {ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct});
  return ops;
}

// Elements of `type` that fill the fusion buffer.
size_t ThresholdCount(DataType type) {
  return kTestThreshold / (WireElements(type) * SizeOf(WireType(type)));
}

class AllreduceTest : public TimedTest, public ::testing::WithParamInterface<int> {};

TEST_P(AllreduceTest, EveryTypeOperationAndCount) {
  Ranks ranks(GetParam());
  for (int step = 0; step < 2; ++step) {  // by name, then by number
    std::vector<Job> jobs;
    for (DataType type : kAllTypes) {
      if (type == DataType::kBool) continue;
      const size_t full = ThresholdCount(type);
      for (ReduceOp op : OpsOf(type)) {
        for (size_t count : {size_t{0}, size_t{1}, size_t{5}, full - 1, full, full + 1}) {
          const std::string name =
              std::string(Name(type)) + "/" + Name(op) + "/" + std::to_string(count);
          jobs.push_back({name, type, op, count, step});
        }
      }
    }
    RunStep(ranks, jobs, step);
  }
  ranks.JoinAll();
}

TEST_P(AllreduceTest, LargeTensorsTravelInChunks) {
  Ranks ranks(GetParam());
  std::vector<Job> jobs;
  for (DataType type : {DataType::kFloat16, DataType::kBfloat16, DataType::kFloat32}) {
    for (size_t count : {3 * kAloneBytes / 16, kAloneBytes / 4 + 1, 5 * kAloneBytes / 4 + 3}) {
      const std::string name = std::string(Name(type)) + std::to_string(count);
      jobs.push_back({name, type, ReduceOp::kAverage, count, 1});
    }
  }
  RunStep(ranks, jobs, 1);
  ranks.JoinAll();
}

TEST_P(AllreduceTest, RandomStepsOfRandomSubsets) {
  Ranks ranks(GetParam());
  std::mt19937 random(GetParam());
  std::vector<Job> all;
  for (int i = 0; i < 40; ++i) {
    const DataType type = kAllTypes[random() % 6];  // the floating ones: gradients
    all.push_back({"v" + std::to_string(i), type, ReduceOp::kAverage, random() % 700, 0});
  }
  for (int step = 0; step < 15; ++step) {
    std::vector<Job> jobs;
    for (Job& job : all) {
      job.seed = step;
      if (random() % 3 != 0) jobs.push_back(job);
    }
    RunStep(ranks, jobs, step);
  }
  ranks.JoinAll();
}

TEST_P(AllreduceTest, WithoutAFusionBuffer) {
  EngineOptions options = TestOptions();
  options.coordinator.fusion_threshold = 0;
  Ranks ranks(GetParam(), options);
  std::vector<Job> jobs;
  for (DataType type : {DataType::kFloat16, DataType::kFloat32, DataType::kComplex128}) {
    for (size_t count : {0, 1, 9}) {
      const std::string name = std::string(Name(type)) + std::to_string(count);
      jobs.push_back({name, type, ReduceOp::kAverage, count, 2});
    }
  }
  RunStep(ranks, jobs, 3);
  ranks.JoinAll();
}

INSTANTIATE_TEST_SUITE_P(Ranks, AllreduceTest, ::testing::Range(1, 9));

class CountsPlain : public Decorated {
 public:
  CountsPlain(std::unique_ptr<Transport> next, std::atomic<int>* plain)
      : Decorated(std::move(next)), plain_(*plain) {}
  Status PlainAllreduce(const void* in, void* out, const Reduction& reduction,
                        TimePoint deadline) override {
    ++plain_;
    EXPECT_LT(deadline, TimePoint::max()) << "the engine's waits have an end";
    return next_->PlainAllreduce(in, out, reduction, deadline);
  }

 private:
  std::atomic<int>& plain_;
};

TEST(PlainSumTest, IsTheTransportsPlainWay) {
  std::atomic<int> plain{0};
  Ranks ranks(3, TestOptions(), [&](std::unique_ptr<Transport> next, int) {
    return std::make_unique<CountsPlain>(std::move(next), &plain);
  });
  RunStep(ranks, {{"own", DataType::kFloat32, ReduceOp::kSum, 7, 0}}, 1);
  EXPECT_EQ(plain, 0);
  RunStep(ranks, {{"plain", DataType::kFloat32, ReduceOp::kPlainSum, 7, 0}}, 1);
  EXPECT_EQ(plain, 3);
  ranks.JoinAll();
}

// A transport of one rank.
class CountsTransfers : public Decorated {
 public:
  explicit CountsTransfers(std::atomic<int>* transfers)
      : Decorated(LocalGroup(1).CreateTransport(0)), transfers_(*transfers) {}
  Status Allreduce(const void* in, void* out, const Reduction& reduction,
                   TimePoint deadline) override {
    ++transfers_;
    return next_->Allreduce(in, out, reduction, deadline);
  }

 private:
  std::atomic<int>& transfers_;
};

// A transport whose operations do not end in time.
class LateTransport : public Decorated {
 public:
  LateTransport() : Decorated(LocalGroup(1).CreateTransport(0)) {}
  Status Allreduce(const void*, void* out, const Reduction&, TimePoint) override {
    return Late(out);
  }
  Status Allgather(const void*, void* out, const std::vector<size_t>&, TimePoint) override {
    return Late(out);
  }
  Status Broadcast(void* data, size_t, int, TimePoint) override { return Late(data); }

  char* out_ = nullptr;

 private:
  Status Late(void* out) {
    out_ = static_cast<char*>(out);
    return Status(Code::kDeadlineExceeded, "late");
  }
};

// So much that malloc would return it to the system.
TEST(FusionTest, AfterAFailureMpiMayWriteToTheMemoryOfARankWithoutTheRequest) {
  constexpr int64_t kCount = 16 << 20;
  LateTransport transport;
  Fusion fusion(&transport, 0);
  Signature signature = {OpKind::kAllreduce, ReduceOp::kSum, DataType::kFloat32, 0, {kCount}};
  const FusionEntry entry = {signature, nullptr};
  EXPECT_FALSE(fusion.Allreduce({entry}, 1, TimePoint::max()).ok());
  *transport.out_ = 1;
  signature.kind = OpKind::kAllgather;
  EXPECT_FALSE(fusion.Allgather(entry, {kCount}, TimePoint::max()).ok());
  *transport.out_ = 1;
  signature.kind = OpKind::kBroadcast;
  EXPECT_FALSE(fusion.Broadcast(entry, TimePoint::max()).ok());
  *transport.out_ = 1;
}

// With any threshold: 0 says that every gradient is sent alone.
TEST(FusionTest, NoTransferIsSmallerThanATensorThatIsSentAlone) {
  std::atomic<int> transfers{0};
  CountsTransfers transport(&transfers);
  Fusion fusion(&transport, 0);
  const auto transfers_of = [&](size_t count) {
    const Job job = {"half", DataType::kFloat16, ReduceOp::kSum, count, 0};
    const std::vector<char> in = MakeInput(job, 0);
    std::vector<char> out(in.size());
    Request request = MakeRequest(job, in.data(), out.data());
    transfers = 0;
    EXPECT_TRUE(fusion.Allreduce({{request.signature, &request}}, 1, TimePoint::max()).ok());
    EXPECT_EQ(CheckOutput(job, {0}, out.data()), "");
    return transfers.load();
  };
  EXPECT_EQ(transfers_of(100), 1);
  EXPECT_EQ(transfers_of(kAloneBytes / sizeof(float)), 1);
  EXPECT_EQ(transfers_of(kAloneBytes / sizeof(float) + 1), 2);
}

// It ends with a reason.
TEST(FusionTest, ARankWithoutMemoryForTheDataOfOthersFails) {
  if (TFMPI_SANITIZED) GTEST_SKIP() << "sanitizers end the process";
  constexpr int64_t kCount = int64_t{1} << 52;
  LateTransport transport;
  Fusion fusion(&transport, 0);
  Signature signature = {OpKind::kAllreduce, ReduceOp::kSum, DataType::kFloat32, 0, {kCount}};
  const FusionEntry entry = {signature, nullptr};
  const Status status = fusion.Allreduce({entry}, 1, TimePoint::max());
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_EQ(status.message(),
            "rank 0 has no memory for a buffer of 18014398509481984 bytes; use fewer ranks per "
            "node or more memory");
  signature.kind = OpKind::kAllgather;
  const FusionEntry gather = {signature, nullptr};
  EXPECT_EQ(fusion.Allgather(gather, {kCount}, TimePoint::max()).code(), Code::kUnavailable);
  signature.kind = OpKind::kBroadcast;
  EXPECT_EQ(fusion.Broadcast({signature, nullptr}, TimePoint::max()).code(), Code::kUnavailable);
  EXPECT_EQ(transport.out_, nullptr);
}

using EngineTest = TimedTest;

TEST_F(EngineTest, SmallTensorsShareCollectives) {
  Ranks ranks(2);
  std::vector<Job> jobs;
  for (int i = 0; i < 64; ++i) {
    jobs.push_back({"v" + std::to_string(i), DataType::kFloat32, ReduceOp::kAverage, 4, 0});
  }
  // Rank 1 comes with all of them at once, when rank 0 has long been ready.
  Tensors zero(jobs, 0), one(jobs, 1);
  std::vector<Ending> endings;
  for (size_t i = 0; i < jobs.size(); ++i) {
    endings.push_back(Submit(ranks[0], MakeRequest(jobs[i], zero.In(i), zero.outputs[i].data())));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  std::vector<Request> requests;
  for (size_t i = 0; i < jobs.size(); ++i) {
    requests.push_back(MakeRequest(jobs[i], one.In(i), one.outputs[i].data()));
  }
  for (Ending& ending : SubmitAll(ranks[1], std::move(requests))) {
    endings.push_back(std::move(ending));
  }
  EXPECT_EQ(AwaitAll(endings), "");
  for (int rank : {0, 1}) {
    EXPECT_EQ(ranks[rank].stats().completed, 64u);
    EXPECT_EQ(ranks[rank].stats().bytes, 64u * 16);
    EXPECT_LT(ranks[rank].stats().collectives, 64u) << "nothing was fused";
  }
  ranks.JoinAll();
}

// A transport whose reduction does nothing: every rank keeps its own gradient.
class SilentTransport : public Decorated {
 public:
  using Decorated::Decorated;

  Status Allreduce(const void* in, void* out, const Reduction& reduction, TimePoint) override {
    const size_t bytes = reduction.count * SizeOf(reduction.type);
    if (in != out) std::copy_n(static_cast<const char*>(in), bytes, static_cast<char*>(out));
    return Status();
  }
};

// The check of all the tests above must be able to fail: here nothing is averaged, on purpose.
TEST_F(EngineTest, TheCheckNoticesWhenNothingIsAveraged) {
  Ranks ranks(2, TestOptions(), [](std::unique_ptr<Transport> real, int) {
    return std::make_unique<SilentTransport>(std::move(real));
  });
  for (DataType type : kAllTypes) {
    if (type == DataType::kBool) continue;
    for (ReduceOp op : OpsOf(type)) {
      const Job job = {std::string(Name(type)) + Name(op), type, op, 32, 0};
      ranks.Each([&](int rank, Engine& engine) {
        const std::vector<char> in = MakeInput(job, rank);
        std::vector<char> out(in.size());
        Ending ending = Submit(engine, MakeRequest(job, in.data(), out.data()));
        EXPECT_TRUE(Await(ending).ok());
        EXPECT_NE(CheckOutput(job, AllRanks(2), out.data()), "") << job.name;
      });
    }
  }
  ranks.JoinAll();
}

// Each rank's data is multiplied by its own weight; a weight of 0 hides whatever a rank contains.
// With tensors that share a buffer and tensors that are sent alone, in place and not.
TEST_P(AllreduceTest, WeightsDifferByRank) {
  Ranks ranks(GetParam());
  for (const DataType type : kAllTypes) {
    if (!IsFloating(type)) continue;
    const size_t counts[] = {1, 5, 2 * ThresholdCount(type) + 3};
    const std::vector<size_t> components = {WireElements(type), 5 * WireElements(type),
                                            counts[2] * WireElements(type)};
    std::vector<std::vector<std::vector<char>>> outputs(ranks.size());
    ranks.Each([&](int rank, Engine& engine) {
      std::vector<std::vector<char>> inputs;
      std::vector<Ending> endings;
      for (size_t i = 0; i < 3; ++i) {
        const Job job = {"w" + std::to_string(i), type, ReduceOp::kSum, counts[i], 0};
        inputs.push_back(MakeInput(job, rank));
        for (size_t k = 0; k < components[i] && rank == 1; ++k) {
          SetComponent(type, inputs[i].data(), k, std::numeric_limits<double>::quiet_NaN());
        }
      }
      outputs[rank] = inputs;
      for (size_t i = 0; i < 3; ++i) {
        const Job job = {"w" + std::to_string(i), type, ReduceOp::kSum, counts[i], 0};
        const bool in_place = i % 2 == static_cast<size_t>(rank % 2);
        Request request = MakeRequest(job, (in_place ? outputs[rank] : inputs)[i].data(),
                                      outputs[rank][i].data());
        request.scale = rank == 1 ? 0 : 1 + rank;
        endings.push_back(Submit(engine, std::move(request)));
      }
      EXPECT_EQ(AwaitAll(endings), "");
    });
    for (size_t i = 0; i < 3; ++i) {
      const Job job = {"w" + std::to_string(i), type, ReduceOp::kSum, counts[i], 0};
      for (size_t k = 0; k < components[i]; ++k) {
        double expected = 0;
        for (int rank = 0; rank < ranks.size(); ++rank) {
          if (rank != 1) expected += (1 + rank) * InputValue(job, rank, k);
        }
        for (int rank = 0; rank < ranks.size(); ++rank) {
          ASSERT_EQ(GetComponent(type, outputs[rank][i].data(), k), expected)
              << Name(type) << " of rank " << rank << ", tensor " << i << ", component " << k;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tfmpi
