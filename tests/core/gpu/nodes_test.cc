// Nodes of several GPUs, with ranks as threads: which way gradients go there, what travels rounded,
// and what becomes of an error at each stage. That averages are right: staged_test.cc.

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tensorflow_patches/core/gpu/direct/hierarchical_collectives.h"
#include "tensorflow_patches/core/gpu/gpu_reduction.h"
#include "tensorflow_patches/core/observability/timeline.h"
#include "tests/core/gpu/gpu_nodes.h"
#include "tests/core/gpu/on_gpu.h"
#include "tests/core/support/elements.h"

namespace tfmpi {
namespace {

using Call = SimulatedGpu::Call;

constexpr BetweenNodes kByShape = {true, false};
constexpr BetweenNodes kRounding = {false, true};

class GpuNodesTest : public TimedTest {
 protected:
  void SetUp() override {
    if (TestGpu::IsReal()) GTEST_SKIP() << "nodes have a simulated NCCL";
  }
};

// Ranks on nodes of these sizes.
struct Cluster {
  explicit Cluster(const std::vector<int>& sizes, const BetweenNodes& between, bool inside,
                   const NodeOptions& options = NodeOptions(),
                   Schedule schedule = Schedule::kRandom,
                   std::chrono::milliseconds timeout = std::chrono::seconds(20),
                   const Ranks::Decorate& rail = nullptr)
      : nodes(sizes, inside, options),
        gpus(nodes.nodes().size(), schedule, DeviceTransport::kNccl) {
    nodes.nodes().DecorateRails(rail);
    ranks = std::make_unique<Ranks>(
        nodes.nodes().size(),
        [&](int rank) {
          EngineOptions engine = nodes.Options(gpus, rank, between);
          engine.collective_timeout = timeout;
          return engine;
        },
        nodes.nodes().Decorator());
  }

  GpuNodes nodes;
  Gpus gpus;
  std::unique_ptr<Ranks> ranks;
};

// Of these numbers on each rank, the result that each gets. `weights`: by rank; empty: none.
std::vector<float> ResultOf(Cluster& cluster, ReduceOp op,
                            const std::vector<std::vector<float>>& values,
                            const std::vector<double>& weights = {}) {
  std::vector<float> result(values[0].size());
  const size_t bytes = result.size() * sizeof(float);
  const std::string name = std::string(Name(op)) + (weights.empty() ? "" : ", weighted");
  const Job job = {name, DataType::kFloat32, op, result.size(), 0};
  cluster.ranks->Each([&](int rank, Engine& engine) {
    TestGpu& gpu = cluster.gpus[rank];
    std::vector<char> input(bytes);
    std::memcpy(input.data(), values[rank].data(), bytes);
    void* const data = gpu.NewMemory(bytes);
    gpu.Write(data, input, cluster.gpus.stream(rank));
    Request request = RequestOnGpu(job, data, data, cluster.gpus.Ready(rank));
    request.signature.weighted = !weights.empty();
    if (!weights.empty()) request.scale = weights[rank];
    EXPECT_EQ(RunOne(engine, std::move(request)), "");
    const std::vector<char> found = gpu.Read(data, bytes, cluster.gpus.stream(rank));
    if (rank == 0) std::memcpy(result.data(), found.data(), bytes);
  });
  return result;
}

// Sums: a share of an average over six ranks is not exact.
TEST_F(GpuNodesTest, EveryTypeAndReductionOfSharesThatDoNotDivide) {
  for (const std::vector<int>& sizes : {std::vector<int>{3, 3}, std::vector<int>{2, 2, 2}}) {
    const Schedule schedule = sizes[0] == 3 ? Schedule::kLate : Schedule::kRandom;
    Cluster cluster(sizes, kByShape, /*inside=*/true, NodeOptions(), schedule);
    std::vector<Job> jobs;
    for (const DataType type : kAllTypes) {
      for (int number = 0; number < kNumReduceOps; ++number) {
        const auto op = static_cast<ReduceOp>(number);
        if (!NcclSupports(type, op) || op == ReduceOp::kAverage || op == ReduceOp::kPlainSum)
          continue;
        for (const size_t count : {size_t{0}, size_t{1}, size_t{2}, size_t{3}, size_t{1001}}) {
          const std::string name = std::string(Name(type)) + Name(op) + std::to_string(count);
          jobs.push_back({name, type, op, count, 1});
        }
      }
    }
    RunStep(*cluster.ranks, cluster.gpus, jobs);
    for (int rank = 0; rank < 6; ++rank) EXPECT_GT(cluster.nodes.reductions(rank), 0) << rank;
    cluster.ranks->JoinAll();
  }
}

// Each rank is told once, by rank 0, and all go the same way.
TEST_F(GpuNodesTest, TheWayIsSaid) {
  const Job job = {"x", DataType::kFloat32, ReduceOp::kAverage, 1001, 1};
  const struct {
    std::vector<int> sizes;
    BetweenNodes between;
    bool inside;
    int reductions;  // of NCCL
    std::string said;
  } cases[] = {
      {{2, 2},
       kByShape,
       true,
       3,
       "NCCL 2.32.3 inside each of 2 nodes of 2 ranks, MPI between them: TF_MPI_TOPOLOGY"},
      {{2, 2}, {}, false, 1, "NCCL 2.32.3 on all ranks"},
      {{4}, kByShape, false, 1, "NCCL 2.32.3 on all ranks"},
      {{1, 1}, kByShape, false, 1, "NCCL 2.32.3 on all ranks"},
      {{1, 3},
       kByShape,
       false,
       1,
       "NCCL 2.32.3 on all ranks, not inside nodes with MPI between them, because the nodes have "
       "different numbers of ranks"},
  };
  for (const auto& one : cases) {
    Cluster cluster(one.sizes, one.between, one.inside);
    RunStep(*cluster.ranks, cluster.gpus, {job});
    EXPECT_EQ(cluster.nodes.said(), one.said);
    for (int rank = 0; rank < cluster.ranks->size(); ++rank) {
      EXPECT_EQ(cluster.nodes.reductions(rank), one.reductions) << one.said;
    }
    cluster.ranks->JoinAll();
  }
}

// As its NCCL id.
TEST_F(GpuNodesTest, EachNodeIsToldByItsFirstRank) {
  Nodes nodes(2, 3);
  LocalGroup group(6);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 6; ++rank) {
    threads.emplace_back([&, rank] {
      const std::unique_ptr<Transport> transport = nodes.Wrap(group.CreateTransport(rank), rank);
      int number = 10 * rank;
      EXPECT_TRUE(ShareFirstValue(transport.get(), transport->topology().node_leader, &number,
                                  sizeof(number), Clock::now() + std::chrono::seconds(20))
                      .ok());
      EXPECT_EQ(number, rank < 3 ? 0 : 30);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// So that statistics count no time twice.
TEST_F(GpuNodesTest, NoStageIsRecordedInsideAnother) {
  StartRecording(kRecordEvents);
  {
    Cluster cluster({2, 2}, kByShape, true);
    RunStep(*cluster.ranks, cluster.gpus,
            {{"x", DataType::kFloat32, ReduceOp::kAverage, 1001, 1},
             {"y", DataType::kFloat32, ReduceOp::kAverage, 300001, 1}});
    cluster.ranks->JoinAll();
  }
  int stages = 0;
  for (const ThreadEvents& thread : CopyEvents().threads) {
    int64_t end = 0;  // of the last: they are in the order of their ends
    for (const Event& event : thread.events) {
      if (event.stage < Stage::kPack || event.stage > Stage::kUnpack) continue;
      EXPECT_GE(event.start, end) << Name(event.stage);
      end = event.end;
      ++stages;
    }
  }
  EXPECT_GT(stages, 4 * 2 * 3);
}

// What the ranks of a node have is added up as it is. Averages are rounded when they leave it, and
// sums are not.
TEST_F(GpuNodesTest, WhatLeavesANodeIsRounded) {
  NodeOptions options;
  options.wire = DataType::kBfloat16;
  const float little = 1.0f / 1024;  // beside 1: lost in a bfloat16
  const std::vector<float> values = {1, 2, 1, 4, 5};
  std::vector<float> exact, sum;
  for (const float value : values) {
    exact.push_back(value + little);
    sum.push_back(4 * value + 4 * little);
  }
  for (const bool rounds : {false, true}) {
    Cluster cluster({2, 2}, rounds ? kRounding : kByShape, true, rounds ? options : NodeOptions());
    const std::vector<std::vector<float>> of_ranks(4, exact);
    EXPECT_EQ(ResultOf(cluster, ReduceOp::kAverage, of_ranks), rounds ? values : exact);
    EXPECT_EQ(ResultOf(cluster, ReduceOp::kSum, of_ranks), sum);
    // A rank whose scale is 1 rounds like the others.
    const std::vector<float> weighted =
        ResultOf(cluster, ReduceOp::kAverage, of_ranks, {4, 1, 1, 1});
    EXPECT_EQ(weighted[0], 1.75f * (rounds ? 1 : exact[0]));
    if (rounds) {
      EXPECT_EQ(cluster.nodes.said(),
                "NCCL 2.32.3 inside each of 2 nodes of 2 ranks, MPI between them: "
                "TF_MPI_COMPRESSION rounds there");
    }
    cluster.ranks->JoinAll();
  }
  // Inside a node nothing is lost: two halves of what a bfloat16 beside 1 can hold.
  Cluster inside({2, 2}, kRounding, true, options);
  EXPECT_EQ(ResultOf(inside, ReduceOp::kAverage, {{4}, {4.0f / 128}, {0}, {0}}),
            (std::vector<float>{1 + 1.0f / 128}));
  inside.ranks->JoinAll();
  // A rank for each node: over the rail, by way of the hosts.
  Cluster alone({1, 1}, kRounding, false, options);
  EXPECT_EQ(ResultOf(alone, ReduceOp::kAverage, {{1 + little}, {1 + little}}),
            (std::vector<float>{1}));
  EXPECT_EQ(alone.nodes.said(),
            "staged through the host, because TF_MPI_COMPRESSION rounds data between nodes, "
            "each has one rank, and NCCL does not round");
  alone.ranks->JoinAll();
}

// ---- Errors ----

constexpr auto kTimeout = std::chrono::milliseconds(TFMPI_SANITIZED ? 3000 : 700);

// An average of which one rank fails. Every rank hears of it, in time, and no stream is held up.
void ExpectTheEnd(Cluster& cluster, size_t count, const std::function<void(int rank)>& before) {
  const Job job = {"x", DataType::kFloat32, ReduceOp::kAverage, count, 1};
  const TimePoint begin = Clock::now();
  cluster.ranks->Each([&](int rank, Engine& engine) {
    OnGpu tensors(cluster.gpus, {job}, rank);
    const GpuMemory memory = cluster.gpus.Ready(rank);
    before(rank);
    // Where it is enqueued all is well so far.
    RunOne(engine, RequestOnGpu(job, tensors.inputs[0], tensors.outputs[0], memory));
    const TimePoint limit = begin + 10 * kTimeout;
    while (engine.failure().ok() && Clock::now() < limit) {
      Clock::Sleep(std::chrono::milliseconds(1));
    }
    EXPECT_NE(engine.failure().message(), "") << "rank " << rank;
    cluster.gpus[rank].simulated()->Finish(cluster.gpus.stream(rank));
  });
  EXPECT_LT(Clock::now() - begin, 6 * kTimeout);
  for (int rank = 0; rank < cluster.ranks->size(); ++rank) {
    cluster.gpus[rank].simulated()->TakeComplaints();
    cluster.nodes.group(rank).TakeComplaints();
  }
}

class GpuNodesErrorTest : public GpuNodesTest {
 protected:
  // Two nodes of two ranks, which have averaged once.
  static Cluster* Begin(const Ranks::Decorate& rail = nullptr) {
    auto* const cluster =
        new Cluster({2, 2}, kByShape, true, NodeOptions(), Schedule::kRandom, kTimeout, rail);
    RunStep(*cluster->ranks, cluster->gpus,
            {{"first", DataType::kFloat32, ReduceOp::kAverage, 9, 1}});
    return cluster;
  }
};

// An odd count: reduce-scatter, the rest, allgather.
TEST_F(GpuNodesErrorTest, OfACollectiveInsideANode) {
  for (int number = 1; number <= 3; ++number) {
    const std::unique_ptr<Cluster> cluster(Begin());
    cluster->nodes.group(3).FailCall(cluster->nodes.place(3), number);
    ExpectTheEnd(*cluster, 9, [](int) {});
  }
}

TEST_F(GpuNodesErrorTest, OfWorkInsideANode) {
  for (int number = 1; number <= 3; ++number) {
    for (const bool told : {true, false}) {
      const std::unique_ptr<Cluster> cluster(Begin());
      SimulatedGroup& group = cluster->nodes.group(3);
      const int place = cluster->nodes.place(3);
      told ? group.FailWork(place, number) : group.LoseWork(place, number);
      ExpectTheEnd(*cluster, 9, [](int) {});
      if (!told) continue;
      // Long before a deadline: NCCL is asked.
      const std::string said = (*cluster->ranks)[3].failure().message();
      EXPECT_NE(said.find("rank 1 has failed (as the test wants it)"), std::string::npos) << said;
    }
  }
}

// What the GPU is asked for on the way, each call once. No copy inside the GPU: it is reduced where
// it lies.
TEST_F(GpuNodesErrorTest, OfTheGpu) {
  const struct {
    Call call;
    int calls;
  } calls[] = {
      {Call::kWait, 7},    // for the gradient; fetch: landed, the share; submitters': 2 + 1
      {Call::kRecord, 6},  // reduced; fetched; landed; done, of both streams; the end
      {Call::kQuery, 1},
      {Call::kCopy, 2},  // there and back
  };
  for (const auto& one : calls) {
    for (int number = 1; number <= one.calls; ++number) {
      const std::unique_ptr<Cluster> cluster(Begin());
      ExpectTheEnd(*cluster, 9, [&](int rank) {
        if (rank == 1) cluster->gpus[1].simulated()->Fail(one.call, number);
      });
    }
  }
}

TEST_F(GpuNodesErrorTest, OfAGpuThatStandsStill) {
  const std::vector<std::string> stages = {
      ") has not ended on simulated GPU 0 within TF_MPI_STALL_TIMEOUT (at most 300 s): "
      "another rank of the node",
      "'a share of gradients' has not arrived from simulated GPU 0",
  };
  for (size_t i = 0; i < stages.size(); ++i) {
    const std::unique_ptr<Cluster> cluster(Begin());
    const Job job = {"x", DataType::kFloat32, ReduceOp::kAverage, 8, 1};
    std::vector<std::string> said(4);
    cluster->ranks->Each([&](int rank, Engine& engine) {
      OnGpu tensors(cluster->gpus, {job}, rank);
      SimulatedGpu& gpu = *cluster->gpus[rank].simulated();
      gpu.Finish(cluster->gpus.stream(rank));
      if (rank == 2) gpu.HoldWork(static_cast<int>(i) + 1);
      const GpuMemory memory = cluster->gpus.Ready(rank);
      said[rank] = RunOne(engine, RequestOnGpu(job, tensors.inputs[0], tensors.outputs[0], memory));
      gpu.LetAllGo();
    });
    EXPECT_NE(said[2].find(stages[i]), std::string::npos) << said[2];
    EXPECT_NE(said[0], "");
    // The other rail's ranks have enqueued theirs if only the share is late.
    for (const int rank : {1, 3}) EXPECT_EQ(said[rank] == "", i == 1) << said[rank];
  }
}

// MPI fails on one rank, or its process hangs there.
class BadRail : public Decorated {
 public:
  BadRail(std::unique_ptr<Transport> next, const std::atomic<bool>* bad, bool hangs)
      : Decorated(std::move(next)), bad_(bad), hangs_(hangs) {}
  Status Allreduce(const void* in, void* out, const Reduction& reduction,
                   TimePoint deadline) override {
    if (!*bad_) return Decorated::Allreduce(in, out, reduction, deadline);
    while (hangs_ && Clock::now() < deadline) Clock::Sleep(std::chrono::milliseconds(1));
    return Status(Code::kUnavailable, "MPI has failed (as the test wants it)");
  }

 private:
  const std::atomic<bool>* const bad_;
  const bool hangs_;
};

TEST_F(GpuNodesErrorTest, OfTheRail) {
  for (const bool hangs : {false, true}) {
    std::atomic<bool> bad{false};
    const auto rail = [&](std::unique_ptr<Transport> next, int rank) -> std::unique_ptr<Transport> {
      if (rank != 1) return next;
      return std::make_unique<BadRail>(std::move(next), &bad, hangs);
    };
    const std::unique_ptr<Cluster> cluster(Begin(rail));
    ExpectTheEnd(*cluster, 9, [&](int) { bad = true; });
    EXPECT_NE((*cluster->ranks)[1].failure().message().find("MPI has failed"), std::string::npos);
  }
}

TEST_F(GpuNodesErrorTest, OfARankOfAnotherNodeThatIsLost) {
  const std::unique_ptr<Cluster> cluster(Begin());
  cluster->ranks->Destroy(3);
  const Job job = {"x", DataType::kFloat32, ReduceOp::kAverage, 8, 1};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      OnGpu tensors(cluster->gpus, {job}, rank);
      EXPECT_NE(
          RunOne((*cluster->ranks)[rank], RequestOnGpu(job, tensors.inputs[0], tensors.outputs[0],
                                                       cluster->gpus.Ready(rank))),
          "");
      cluster->gpus[rank].simulated()->Finish(cluster->gpus.stream(rank));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// One that is no longer of use says so, and has no halves of its own.
TEST_F(GpuNodesTest, AfterAnErrorNothingIsReduced) {
  SimulatedGroup group(1);
  SimulatedGpu gpu;
  LocalGroup rail(1);
  const std::unique_ptr<Transport> transport = rail.CreateTransport(0);
  std::unique_ptr<DeviceCollectives> inside;
  ASSERT_TRUE(group.Join(0, &gpu, &inside).ok());
  GpuStream stream = nullptr;
  void* memory = nullptr;
  ASSERT_TRUE(gpu.NewStream(&stream).ok());
  ASSERT_TRUE(gpu.NewMemory(8, &memory).ok());
  const TimePoint soon = Clock::now() + std::chrono::seconds(5);
  {
    HierarchicalCollectives both(&gpu, std::move(inside), Topology(), transport.get(),
                                 kStagedChunkBytes);
    EXPECT_EQ(both.description(), "simulated NCCL inside each node, MPI between nodes");
    EXPECT_EQ(
        both.ReduceScatter(memory, memory, 1, DataType::kFloat32, ReduceOp::kSum, 1, stream, soon)
            .message(),
        both.description() + " has no reduce-scatter");
    EXPECT_EQ(both.Allgather(memory, memory, 1, DataType::kFloat32, stream, soon).message(),
              both.description() + " has no allgather");
    EXPECT_TRUE(
        both.Allreduce(nullptr, nullptr, 0, DataType::kFloat32, ReduceOp::kSum, 1, stream, soon)
            .ok());
    EXPECT_TRUE(both.Poll().ok());
    gpu.Fail(Call::kRecord, 1);
    const auto reduce = [&] {
      return both.Allreduce(memory, memory, 2, DataType::kInt32, ReduceOp::kSum, 1, stream, soon);
    };
    const std::string said = reduce().message();
    EXPECT_NE(said.find("cuEventRecord"), std::string::npos) << said;
    EXPECT_EQ(both.Poll().message(), said);
    both.Abort();
    EXPECT_EQ(reduce().message(), said) << "the first reason stays";
  }
  gpu.Delete(stream);
  gpu.DeleteMemory(memory);
}

}  // namespace
}  // namespace tfmpi
