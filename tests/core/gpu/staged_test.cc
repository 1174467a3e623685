// Allreduce and broadcast of what lies on a GPU, with ranks as threads: each has a GPU, a stream on
// which its gradients are late, and reads its results behind nothing but that stream's own order.

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/core/device/test_gpu.h"
#include "tests/core/support/elements.h"
#include "tests/core/support/job.h"
#include "tests/core/support/ranks.h"

namespace tfmpi {
namespace {

using Schedule = SimulatedGpu::Schedule;

// One for each rank; on a real machine all are its first GPU.
class Gpus {
 public:
  Gpus(int ranks, Schedule schedule) {
    for (int rank = 0; rank < ranks; ++rank) {
      SimulatedGpu::Options options;
      options.schedule = schedule;
      options.seed = static_cast<uint64_t>(rank) + 7;
      gpus_.push_back(TestGpu::IsReal() && rank != 0
                          ? std::make_unique<TestGpu>(gpus_.front().get())
                          : std::make_unique<TestGpu>(options));
      streams_.push_back(gpus_.back()->NewStream());
    }
  }
  ~Gpus() {
    while (!gpus_.empty()) gpus_.pop_back();
  }

  TestGpu& operator[](int rank) { return *gpus_[rank]; }
  GpuStream stream(int rank) const { return streams_[rank]; }

  // What was enqueued on the rank's stream so far is ready.
  GpuMemory Ready(int rank) {
    TestGpu& gpu = *gpus_[rank];
    GpuMemory memory;
    memory.gpu = &*gpu;
    memory.stream = streams_[rank];
    memory.ready = gpu.NewEvent();
    EXPECT_TRUE(gpu->Record(memory.ready, memory.stream).ok());
    return memory;
  }
  // A number on the rank's GPU, enqueued.
  const void* Number(int rank, float number) {
    std::vector<char> bytes(sizeof(float));
    std::memcpy(bytes.data(), &number, sizeof(float));
    void* const there = gpus_[rank]->NewMemory(sizeof(float));
    gpus_[rank]->Write(there, bytes, streams_[rank]);
    return there;
  }

 private:
  std::vector<std::unique_ptr<TestGpu>> gpus_;
  std::vector<GpuStream> streams_;
};

// One rank's tensors of a list of jobs, on its GPU. Odd jobs are reduced where they lie.
struct OnGpu {
  OnGpu(Gpus& gpus, const std::vector<Job>& jobs, int rank) : gpu(gpus[rank]) {
    for (size_t i = 0; i < jobs.size(); ++i) {
      const std::vector<char> input = MakeInput(jobs[i], rank);
      sizes.push_back(input.size());
      inputs.push_back(gpu.NewMemory(std::max<size_t>(1, input.size())));
      gpu.Write(inputs.back(), input, gpus.stream(rank));
      outputs.push_back(i % 2 == 1 ? inputs[i] : gpu.NewMemory(std::max<size_t>(1, input.size())));
      if (i % 2 == 0)
        gpu.Write(outputs[i], std::vector<char>(input.size(), '\x7b'), gpus.stream(rank));
    }
  }

  TestGpu& gpu;
  std::vector<size_t> sizes;
  std::vector<void*> inputs, outputs;
};

// "" or the error with which it ended.
std::string RunOne(Engine& engine, Request request) {
  std::vector<Ending> endings;
  endings.push_back(Submit(engine, std::move(request)));
  return AwaitAll(endings);
}

Request RequestOnGpu(const Job& job, const void* in, void* out, const GpuMemory& memory) {
  Request request = MakeRequest(job, in, out);
  request.signature.on_gpu = true;
  request.memory = memory;
  return request;
}

void RunStep(Ranks& ranks, Gpus& gpus, const std::vector<Job>& jobs) {
  std::vector<std::vector<std::vector<char>>> results(ranks.size());
  ranks.Each([&](int rank, Engine& engine) {
    OnGpu tensors(gpus, jobs, rank);
    const GpuMemory memory = gpus.Ready(rank);
    std::vector<Ending> endings;
    for (size_t i = 0; i < jobs.size(); ++i) {
      endings.push_back(
          Submit(engine, RequestOnGpu(jobs[i], tensors.inputs[i], tensors.outputs[i], memory)));
    }
    EXPECT_EQ(AwaitAll(endings), "");
    for (size_t i = 0; i < jobs.size(); ++i) {
      results[rank].push_back(
          gpus[rank].Read(tensors.outputs[i], tensors.sizes[i], gpus.stream(rank)));
    }
  });
  for (size_t i = 0; i < jobs.size(); ++i) {
    EXPECT_EQ(CheckOutput(jobs[i], AllRanks(ranks.size()), results[0][i].data()), "");
    for (int rank = 1; rank < ranks.size(); ++rank) {
      EXPECT_EQ(results[rank][i], results[0][i]) << "rank " << rank << ", '" << jobs[i].name << "'";
    }
  }
}

struct Case {
  int ranks;
  Schedule schedule;
};

class StagedTest : public TimedTest, public ::testing::WithParamInterface<Case> {};

TEST_P(StagedTest, EveryTypeAndSize) {
  Gpus gpus(GetParam().ranks, GetParam().schedule);
  Ranks ranks(GetParam().ranks);
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

TEST_P(StagedTest, OneThatIsCutIntoManyChunks) {
  Gpus gpus(GetParam().ranks, GetParam().schedule);
  Ranks ranks(GetParam().ranks);
  const size_t chunk = kGpuChunkBytes / sizeof(float);
  std::vector<Job> jobs = {
      {"many", DataType::kFloat32, ReduceOp::kAverage, 7 * chunk + 3, 1},
      {"halves", DataType::kFloat16, ReduceOp::kAverage, 4 * chunk + 1, 2},
      {"exact", DataType::kFloat32, ReduceOp::kSum, 2 * chunk, 3},
  };
  RunStep(ranks, gpus, jobs);
  ranks.JoinAll();
}

TEST_P(StagedTest, WeightsThatLieOnTheGpu) {
  Gpus gpus(GetParam().ranks, GetParam().schedule);
  Ranks ranks(GetParam().ranks);
  const size_t count = kGpuChunkBytes / sizeof(float) + 9;  // two chunks
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
    memory.scale = weight;
    const Job job = {"w", DataType::kFloat32, ReduceOp::kSum, count, 0};
    EXPECT_EQ(RunOne(engine, RequestOnGpu(job, data, data, memory)), "");
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
TEST_P(StagedTest, PartsThatShareARequest) {
  Gpus gpus(GetParam().ranks, GetParam().schedule);
  Ranks ranks(GetParam().ranks);
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

TEST_P(StagedTest, TheRootsValueReachesAll) {
  Gpus gpus(GetParam().ranks, GetParam().schedule);
  Ranks ranks(GetParam().ranks);
  const int root = ranks.size() - 1;
  const Job job = {"b", DataType::kFloat64, ReduceOp::kSum, 3 * kGpuChunkBytes / 8 + 5, 4};
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

// A rank that has joined cuts as the others do, with a GPU or without one.
TEST_P(StagedTest, ARankThatHasJoinedContributesZeros) {
  if (GetParam().ranks < 2) GTEST_SKIP() << "one rank has no other";
  Gpus gpus(GetParam().ranks, GetParam().schedule);
  Ranks ranks(GetParam().ranks);
  const Job job = {"j", DataType::kFloat32, ReduceOp::kAverage, kGpuChunkBytes / 4 + 11, 5};
  std::vector<int> others = AllRanks(ranks.size());
  others.pop_back();
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

INSTANTIATE_TEST_SUITE_P(Ranks, StagedTest,
                         ::testing::Values(Case{1, Schedule::kLate}, Case{2, Schedule::kRandom},
                                           Case{2, Schedule::kLate}, Case{3, Schedule::kRandom}));

using StagedErrorTest = TimedTest;

TEST_F(StagedErrorTest, AWeightThatIsNoneIsAnErrorOfItsRank) {
  Gpus gpus(2, Schedule::kRandom);
  Ranks ranks(2);
  const Job job = {"w", DataType::kFloat32, ReduceOp::kSum, 8, 0};
  std::vector<std::string> said(2);
  ranks.Each([&](int rank, Engine& engine) {
    OnGpu tensors(gpus, {job}, rank);
    const void* const weight = gpus.Number(rank, rank == 1 ? -1.0f : 1.0f);
    GpuMemory memory = gpus.Ready(rank);
    memory.scale = weight;
    said[rank] = RunOne(engine, RequestOnGpu(job, tensors.inputs[0], tensors.outputs[0], memory));
    gpus[rank].Read(tensors.outputs[0], tensors.sizes[0], gpus.stream(rank));
  });
  EXPECT_EQ(said[0], "");
  EXPECT_NE(said[1].find("the weight of 'w' is -1"), std::string::npos) << said[1];
  ranks.JoinAll();
}

TEST_F(StagedErrorTest, AHostAndAGpuAreToldApart) {
  Gpus gpus(2, Schedule::kRandom);
  Ranks ranks(2);
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

// A GPU that stands still, or whose work fails, ends the job on all ranks with its name.
TEST_F(StagedErrorTest, AGpuThatFailsEndsTheJob) {
  if (TestGpu::IsReal()) GTEST_SKIP() << "a real GPU fails for all that comes after";
  for (const bool stands_still : {true, false}) {
    Gpus gpus(2, Schedule::kRandom);
    EngineOptions options = TestOptions();
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
    EXPECT_NE(said[1].find(stands_still ? "has not come from simulated GPU 0" : "simulated GPU 0"),
              std::string::npos)
        << said[1];
    if (!stands_still) gpus[1].simulated()->TakeComplaints();
  }
}

}  // namespace
}  // namespace tfmpi
