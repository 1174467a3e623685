// Allreduce and broadcast of what lies on a GPU, with ranks as threads: staged through the hosts,
// each rank by memory of its own or in memory of its node, on one GPU that all ranks share, by an
// MPI that takes memory of GPUs, and on nodes of several GPUs, which reduce among themselves.

#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/core/gpu/gpu_nodes.h"
#include "tests/core/gpu/on_gpu.h"
#include "tests/core/support/elements.h"
#include "tests/core/support/nodes.h"

namespace tfmpi {
namespace {

struct Case {
  int ranks;
  Schedule schedule;
  DeviceTransport way;
  int per_node = 0;  // 0: there are no nodes
};

Ranks::Decorate DecoratorOf(Nodes* nodes) {
  if (nodes == nullptr) return nullptr;
  if (TestGpu::IsReal()) nodes->UseSegments();  // it registers no page twice for a process
  return nodes->Decorator();
}

class OnGpuTest : public TimedTest, public ::testing::WithParamInterface<Case> {
 protected:
  void SetUp() override {
    if (inside && TestGpu::IsReal()) GTEST_SKIP() << "nodes have a simulated NCCL";
  }
  EngineOptions Options(int rank) {
    return inside ? nodes.Options(gpus, rank, {/*by_shape=*/true, false}, GetParam().way)
                  : OptionsOf(GetParam().way);
  }
  static std::vector<int> Sizes() {
    const int per_node = GetParam().per_node == 0 ? GetParam().ranks : GetParam().per_node;
    return std::vector<int>(GetParam().ranks / per_node, per_node);
  }

  const bool inside = GetParam().way == DeviceTransport::kNccl;  // of nodes, and MPI between them
  GpuNodes nodes{Sizes(), /*inside=*/true};
  Gpus gpus{GetParam().ranks, GetParam().schedule, GetParam().way};
  Nodes* InNodes() { return GetParam().per_node == 0 ? nullptr : &nodes.nodes(); }
  LocalMessages messages{GetParam().ranks};
  Ranks ranks{GetParam().ranks,
              [this](int rank) {
                EngineOptions options = Options(rank);
                options.log = [this](const std::string& line) { Say(line); };
                return options;
              },
              GetParam().way == DeviceTransport::kMpi ? CudaAwareRanks(&gpus, &messages)
                                                      : DecoratorOf(InNodes())};

  // An MPI that is not used would not be missed, nor would an NCCL inside nodes.
  void TearDown() override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (inside && !said_.empty()) {
      EXPECT_NE(said_[0].find("inside each of 2 nodes"), std::string::npos) << said_[0];
    }
    if (GetParam().way != DeviceTransport::kMpi) return;
    for (const std::string& line : said_) EXPECT_EQ(line.find("staged"), std::string::npos) << line;
  }

 private:
  void Say(const std::string& line) {
    std::lock_guard<std::mutex> lock(mutex_);
    said_.push_back(line);
  }

  std::mutex mutex_;
  std::vector<std::string> said_;
};

TEST_P(OnGpuTest, EveryTypeAndSize) {
  std::vector<Job> jobs;
  for (DataType type : kAllTypes) {
    if (!IsFloating(type)) continue;
    for (size_t count : {size_t{0}, size_t{1}, size_t{5}, size_t{16}, size_t{1000}}) {
      const std::string name = std::string(Name(type)) + std::to_string(count);
      jobs.push_back({name, type, ReduceOp::kAverage, count, 1});
    }
  }
  for (int step = 0; step < 2; ++step) {  // by name, then by number
    for (Job& job : jobs) job.seed = step;
    RunStep(ranks, gpus, jobs);
  }
  ranks.JoinAll();
}

TEST_P(OnGpuTest, OneThatIsCutIntoManyChunks) {
  const size_t chunk = kStagedChunkBytes / sizeof(float);
  std::vector<Job> jobs = {
      {"many", DataType::kFloat32, ReduceOp::kAverage, 7 * chunk + 3, 1},
      {"halves", DataType::kFloat16, ReduceOp::kAverage, 4 * chunk + 1, 2},
      {"exact", DataType::kFloat32, ReduceOp::kSum, 2 * chunk, 3},
  };
  RunStep(ranks, gpus, jobs);
  ranks.JoinAll();
}

TEST_P(OnGpuTest, WeightsThatLieOnTheGpu) {
  const size_t count = kStagedChunkBytes / sizeof(float) + 9;  // two chunks
  std::vector<std::vector<char>> results(ranks.size());
  ranks.Each([&](int rank, Engine& engine) {
    TestGpu& gpu = gpus[rank];
    const std::vector<float> ones(count, static_cast<float>(rank + 1));
    std::vector<char> bytes(count * sizeof(float));
    std::memcpy(bytes.data(), ones.data(), bytes.size());
    void* const data = gpu.NewMemory(bytes.size());
    gpu.Write(data, bytes, gpus.stream(rank));
    const void* const weight = gpus.Number(rank, rank == 0 ? 0.5f : 2.0f);
    GpuMemory memory = gpus.Ready(rank);
    memory.weight_on_gpu = weight;
    const Job job = {"w", DataType::kFloat32, ReduceOp::kSum, count, 0};
    Request request = RequestOnGpu(job, data, data, memory);
    request.signature.weighted = true;
    EXPECT_EQ(RunOne(engine, std::move(request)), "");
    results[rank] = gpu.Read(data, bytes.size(), gpus.stream(rank));
  });
  float expected = 0;
  for (int rank = 0; rank < ranks.size(); ++rank) {
    expected += (rank == 0 ? 0.5f : 2.0f) * static_cast<float>(rank + 1);
  }
  for (int rank = 0; rank < ranks.size(); ++rank) {
    std::vector<float> values(count);
    std::memcpy(values.data(), results[rank].data(), results[rank].size());
    EXPECT_EQ(values.front(), expected);
    EXPECT_EQ(values.back(), expected);
  }
  ranks.JoinAll();
}

// Tensors of one request, with room of their own for all of their results.
TEST_P(OnGpuTest, PartsThatShareARequest) {
  const std::vector<size_t> counts = {3, 0, 40, 1};
  auto parts = std::make_shared<Parts>();
  size_t room = 0;
  std::vector<size_t> starts;
  for (size_t i = 0; i < counts.size(); ++i) {
    parts->names.push_back("p" + std::to_string(i));
    parts->shapes.push_back({static_cast<int64_t>(counts[i])});
    starts.push_back(room);
    room += PaddedElements(DataType::kFloat32, counts[i]);
  }
  ranks.Each([&](int rank, Engine& engine) {
    for (const bool together : {true, false}) {
      TestGpu& gpu = gpus[rank];
      Request request;
      request.name = together ? "together" : "apart";
      request.signature.on_gpu = true;
      request.signature.shape = {static_cast<int64_t>(room)};
      request.signature.parts = parts;
      void* const all = gpu.NewMemory(room * sizeof(float));
      if (together) request.output = all;
      std::vector<Job> jobs;
      std::vector<void*> outputs;
      for (size_t i = 0; i < counts.size(); ++i) {
        jobs.push_back({parts->names[i], DataType::kFloat32, ReduceOp::kAverage, counts[i], 3});
        const std::vector<char> input = MakeInput(jobs[i], rank);
        void* const in = gpu.NewMemory(input.size() + 1);
        gpu.Write(in, input, gpus.stream(rank));
        outputs.push_back(together ? static_cast<char*>(all) + starts[i] * sizeof(float)
                                   : gpu.NewMemory(input.size() + 1));
        request.parts.push_back({in, together ? nullptr : outputs[i]});
      }
      request.memory = gpus.Ready(rank);
      EXPECT_EQ(RunOne(engine, std::move(request)), "");
      for (size_t i = 0; i < counts.size(); ++i) {
        const std::vector<char> result =
            gpu.Read(outputs[i], counts[i] * sizeof(float), gpus.stream(rank));
        EXPECT_EQ(CheckOutput(jobs[i], AllRanks(ranks.size()), result.data()), "");
      }
    }
  });
  ranks.JoinAll();
}

TEST_P(OnGpuTest, TheRootsValueReachesAll) {
  const int root = ranks.size() - 1;
  const Job job = {"b", DataType::kFloat64, ReduceOp::kSum, 3 * kStagedChunkBytes / 8 + 5, 4};
  ranks.Each([&](int rank, Engine& engine) {
    TestGpu& gpu = gpus[rank];
    const std::vector<char> own = MakeInput(job, rank);
    void* const data = gpu.NewMemory(own.size());
    gpu.Write(data, own, gpus.stream(rank));
    Request request;
    request.name = job.name;
    request.signature = {
        OpKind::kBroadcast, ReduceOp::kAverage, job.type, root, {static_cast<int64_t>(job.count)}};
    request.signature.on_gpu = true;
    request.output = data;
    request.memory = gpus.Ready(rank);
    EXPECT_EQ(RunOne(engine, std::move(request)), "");
    EXPECT_EQ(gpu.Read(data, own.size(), gpus.stream(rank)), MakeInput(job, root)) << rank;
  });
  ranks.JoinAll();
}

// The last reduction is still under way when the ranks end.
TEST_P(OnGpuTest, AResultThatNobodyWaitsFor) {
  const Job job = {"r", DataType::kFloat32, ReduceOp::kAverage, 50000, 6};
  std::vector<std::unique_ptr<OnGpu>> tensors(ranks.size());
  ranks.Each([&](int rank, Engine& engine) {
    tensors[rank] = std::make_unique<OnGpu>(gpus, std::vector<Job>{job}, rank);
    EXPECT_EQ(RunOne(engine, RequestOnGpu(job, tensors[rank]->inputs[0], tensors[rank]->outputs[0],
                                          gpus.Ready(rank))),
              "");
  });
  ranks.JoinAll();
  for (int rank = 0; rank < ranks.size(); ++rank) ranks.Destroy(rank);
  for (int rank = 0; rank < ranks.size(); ++rank) {
    const std::vector<char> result =
        gpus[rank].Read(tensors[rank]->outputs[0], tensors[rank]->sizes[0], gpus.stream(rank));
    EXPECT_EQ(CheckOutput(job, AllRanks(ranks.size()), result.data()), "");
  }
}

// A rank that has joined cuts as the others do, with a GPU or without one.
TEST_P(OnGpuTest, ARankThatHasJoinedContributesZeros) {
  if (GetParam().ranks < 2) GTEST_SKIP() << "one rank has no other";
  const Job job = {"j", DataType::kFloat32, ReduceOp::kAverage, kStagedChunkBytes / 4 + 11, 5};
  std::vector<int> others = AllRanks(ranks.size());
  others.pop_back();
  RunStep(ranks, gpus, {job});  // the ranks choose their way while all are there
  ranks.Each([&](int rank, Engine& engine) {
    if (rank == ranks.size() - 1) {
      EXPECT_TRUE(engine.Join().ok());
      return;
    }
    OnGpu tensors(gpus, {job}, rank);
    EXPECT_EQ(
        RunOne(engine, RequestOnGpu(job, tensors.inputs[0], tensors.outputs[0], gpus.Ready(rank))),
        "");
    const std::vector<char> result =
        gpus[rank].Read(tensors.outputs[0], tensors.sizes[0], gpus.stream(rank));
    EXPECT_EQ(CheckOutput(job, others, result.data()), "");
    EXPECT_TRUE(engine.Join().ok());
  });
}

constexpr DeviceTransport kStaged = DeviceTransport::kStaged;
constexpr DeviceTransport kShared = DeviceTransport::kIpc;
constexpr DeviceTransport kMpi = DeviceTransport::kMpi;
constexpr DeviceTransport kNccl = DeviceTransport::kNccl;

INSTANTIATE_TEST_SUITE_P(Staged, OnGpuTest,
                         ::testing::Values(Case{1, Schedule::kLate, kStaged},
                                           Case{2, Schedule::kRandom, kStaged},
                                           Case{2, Schedule::kLate, kStaged},
                                           Case{3, Schedule::kRandom, kStaged}));
INSTANTIATE_TEST_SUITE_P(InNodes, OnGpuTest,
                         ::testing::Values(Case{2, Schedule::kRandom, kStaged, 2},
                                           Case{3, Schedule::kLate, kStaged, 3},
                                           Case{4, Schedule::kRandom, kStaged, 2}));
INSTANTIATE_TEST_SUITE_P(Shared, OnGpuTest,
                         ::testing::Values(Case{2, Schedule::kRandom, kShared},
                                           Case{2, Schedule::kLate, kShared},
                                           Case{4, Schedule::kRandom, kShared}));
INSTANTIATE_TEST_SUITE_P(Nodes, OnGpuTest,
                         ::testing::Values(Case{4, Schedule::kRandom, kNccl, 2},
                                           Case{4, Schedule::kLate, kNccl, 2}));

INSTANTIATE_TEST_SUITE_P(CudaAware, OnGpuTest,
                         ::testing::Values(Case{2, Schedule::kRandom, kMpi},
                                           Case{2, Schedule::kLate, kMpi},
                                           Case{4, Schedule::kLate, kMpi}));

using StagedErrorTest = TimedTest;

TEST_F(StagedErrorTest, AWeightThatIsNoneIsAnErrorOfItsRank) {
  const std::string why = "the weight of 'w' is -1.000000; it must be finite and not negative";
  for (const DeviceTransport way : {kStaged, kShared}) {
    Gpus gpus(2, Schedule::kRandom, way);
    Ranks ranks(2, [way](int) { return OptionsOf(way); });
    const Job job = {"w", DataType::kFloat32, ReduceOp::kSum, 8, 0};
    std::vector<std::string> said(2);
    ranks.Each([&](int rank, Engine& engine) {
      OnGpu tensors(gpus, {job}, rank);
      const void* const weight = gpus.Number(rank, rank == 1 ? -1.0f : 1.0f);
      GpuMemory memory = gpus.Ready(rank);
      memory.weight_on_gpu = weight;
      said[rank] = RunOne(engine, RequestOnGpu(job, tensors.inputs[0], tensors.outputs[0], memory));
      gpus[rank].Read(tensors.outputs[0], tensors.sizes[0], gpus.stream(rank));
    });
    EXPECT_EQ(said[0], "");
    EXPECT_EQ(said[1], way == kStaged ? why : why + ", and 1 in an unweighted average");
    ranks.JoinAll();
  }
}

// A rank that has joined still waits for its own copies, whose slots come round again.
TEST_F(StagedErrorTest, AGpuThatStandsStillEndsAJobThatItHasNoPartIn) {
  if (TestGpu::IsReal()) GTEST_SKIP() << "a real GPU does not stand still on demand";
  Gpus gpus(2, Schedule::kRandom, kStaged);
  EngineOptions options = OptionsOf(kStaged);
  options.collective_timeout = std::chrono::seconds(2);
  Ranks ranks(2, options);
  const Job job = {"x", DataType::kFloat32, ReduceOp::kAverage, 2 * kStagedChunkBytes, 0};
  std::vector<std::string> said(2);
  ranks.Each([&](int rank, Engine& engine) {
    OnGpu tensors(gpus, {job, job}, rank);
    SimulatedGpu& gpu = *gpus[rank].simulated();
    gpu.Finish(gpus.stream(rank));
    if (rank == 1) gpu.HoldWork(2 * 8);  // the last copy of the first step
    said[rank] =
        RunOne(engine, RequestOnGpu(job, tensors.inputs[0], tensors.outputs[0], gpus.Ready(rank)));
    EXPECT_EQ(said[rank], "") << "it is enqueued";
    said[rank] = rank == 1 ? engine.Join().message()
                           : RunOne(engine, RequestOnGpu(job, tensors.inputs[1], tensors.outputs[1],
                                                         gpus.Ready(rank)));
    gpu.LetAllGo();
    gpu.Finish(gpus.stream(rank));
  });
  EXPECT_NE(said[0], "");
  EXPECT_NE(said[1].find("an earlier result has not arrived from simulated GPU 0, which is busy "
                         "with earlier work, or hangs"),
            std::string::npos)
      << said[1];
}

TEST_F(StagedErrorTest, AHostWithoutRoomForTheChunks) {
  if (TFMPI_SANITIZED) GTEST_SKIP() << "sanitizers end the process";
  PinnedRing ring(size_t{1} << 56);
  EXPECT_EQ(ring.Prepare(nullptr).message(), "no host memory for chunks of GPU data");
}

TEST_F(StagedErrorTest, AHostAndAGpuAreToldApart) {
  Gpus gpus(2, Schedule::kRandom, kStaged);
  Ranks ranks(2, [](int) { return OptionsOf(kStaged); });
  const Job job = {"x", DataType::kFloat32, ReduceOp::kAverage, 8, 0};
  std::vector<std::string> said(2);
  ranks.Each([&](int rank, Engine& engine) {
    std::vector<char> host = MakeInput(job, rank);
    if (rank == 0) {
      said[rank] = RunOne(engine, MakeRequest(job, host.data(), host.data()));
      return;
    }
    OnGpu tensors(gpus, {job}, rank);
    said[rank] =
        RunOne(engine, RequestOnGpu(job, tensors.inputs[0], tensors.outputs[0], gpus.Ready(rank)));
    gpus[rank].Read(tensors.outputs[0], tensors.sizes[0], gpus.stream(rank));
  });
  for (const std::string& one : said) {
    EXPECT_NE(one.find("rank 0 has allreduce average of float32 [8], rank 1 has allreduce average "
                       "of float32 [8] on a GPU"),
              std::string::npos)
        << one;
  }
  ranks.JoinAll();
}

// The peers are in the exchange already.
TEST_F(StagedErrorTest, ARankWithoutRoomForTheChunksEndsTheJob) {
  if (TestGpu::IsReal()) GTEST_SKIP() << "a real GPU does not fail on demand";
  using Call = SimulatedGpu::Call;
  for (const Call call : {Call::kNewPinned, Call::kNewStream, Call::kNewEvent}) {
    Gpus gpus(2, Schedule::kRandom, kStaged);
    EngineOptions options = OptionsOf(kStaged);
    options.collective_timeout = std::chrono::seconds(1);
    Ranks ranks(2, options);
    std::vector<std::string> said(2);
    ranks.Each([&](int rank, Engine& engine) {
      OnGpu tensors(gpus, {kJob}, rank);
      const GpuMemory memory = gpus.Ready(rank);
      if (rank == 1) gpus[1].simulated()->Fail(call, 1);
      said[rank] =
          RunOne(engine, RequestOnGpu(kJob, tensors.inputs[0], tensors.outputs[0], memory));
    });
    EXPECT_NE(said[0], "");
    EXPECT_NE(said[1].find("rank 1/2: allreduce 'x': cu"), std::string::npos) << said[1];
  }
}

// A GPU that stands still, or whose work fails, ends the job on all ranks with its name.
TEST_F(StagedErrorTest, AGpuThatFailsEndsTheJob) {
  if (TestGpu::IsReal()) GTEST_SKIP() << "a real GPU fails for all that comes after";
  for (const bool stands_still : {true, false}) {
    Gpus gpus(2, Schedule::kRandom, kStaged);
    EngineOptions options = OptionsOf(kStaged);
    options.collective_timeout = std::chrono::seconds(2);
    Ranks ranks(2, options);
    const Job job = {"x", DataType::kFloat32, ReduceOp::kAverage, 8, 0};
    std::vector<std::string> said(2);
    ranks.Each([&](int rank, Engine& engine) {
      OnGpu tensors(gpus, {job}, rank);
      GpuMemory memory = gpus.Ready(rank);
      if (rank == 1 && !stands_still) gpus[1].simulated()->FailWork(1);
      if (rank == 1 && stands_still) {
        gpus[1].simulated()->Hold(gpus.stream(1));
        memory = gpus.Ready(rank);
      }
      said[rank] = RunOne(engine, RequestOnGpu(job, tensors.inputs[0], tensors.outputs[0], memory));
      if (rank == 1 && stands_still) gpus[1].simulated()->LetGo(gpus.stream(1));
    });
    EXPECT_NE(said[0], "");
    EXPECT_NE(
        said[1].find(stands_still ? "has not arrived from simulated GPU 0" : "simulated GPU 0"),
        std::string::npos)
        << said[1];
    if (!stands_still) gpus[1].simulated()->TakeComplaints();
  }
}

}  // namespace
}  // namespace tfmpi
