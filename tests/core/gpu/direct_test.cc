// Reductions that GPUs do among themselves, with ranks as threads, simulated GPUs and a simulated
// NCCL; and when they are staged all the same.

#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tensorflow_patches/core/gpu/gpu_reduction.h"
#include "tests/core/device/simulated_collectives.h"
#include "tests/core/device/simulated_gpu.h"
#include "tests/core/support/job.h"
#include "tests/core/support/looks_late.h"
#include "tests/core/support/ranks.h"

namespace tfmpi {
namespace {

using Schedule = SimulatedGpu::Schedule;

// A rank's GPU, its stream, and what it allocates, until the test ends.
struct Place {
  explicit Place(int rank, Schedule schedule) {
    SimulatedGpu::Options options;
    options.schedule = schedule;
    options.seed = static_cast<uint64_t>(rank) + 3;
    options.description = "simulated GPU " + std::to_string(rank);
    gpu = std::make_unique<SimulatedGpu>(options);
    EXPECT_TRUE(gpu->NewStream(&stream).ok());
  }
  ~Place() {
    for (GpuEvent event : events) gpu->Delete(event);
    gpu->Delete(stream);
    for (void* one : memory) gpu->DeleteMemory(one);
    for (void* one : pinned) gpu->DeletePinned(one);
  }

  // Data on the GPU, enqueued.
  void* Put(const void* data, size_t bytes) {
    memory.push_back(nullptr);
    pinned.push_back(nullptr);
    EXPECT_TRUE(gpu->NewMemory(bytes + 1, &memory.back()).ok());
    EXPECT_TRUE(gpu->NewPinned(bytes + 1, &pinned.back()).ok());
    std::memcpy(pinned.back(), data, bytes);
    EXPECT_TRUE(gpu->Copy(memory.back(), pinned.back(), bytes, stream).ok());
    return memory.back();
  }
  std::vector<char> Get(const void* from, size_t bytes) {
    pinned.push_back(nullptr);
    EXPECT_TRUE(gpu->NewPinned(bytes + 1, &pinned.back()).ok());
    EXPECT_TRUE(gpu->Copy(pinned.back(), from, bytes, stream).ok());
    gpu->Finish(stream);
    const auto* const data = static_cast<const char*>(pinned.back());
    return std::vector<char>(data, data + bytes);
  }
  GpuMemory Ready() {
    events.push_back(nullptr);
    EXPECT_TRUE(gpu->NewEvent(&events.back()).ok());
    EXPECT_TRUE(gpu->Record(events.back(), stream).ok());
    GpuMemory ready;
    ready.gpu = gpu.get();
    ready.stream = stream;
    ready.ready = events.back();
    return ready;
  }

  std::unique_ptr<SimulatedGpu> gpu;
  GpuStream stream = nullptr;
  std::vector<GpuEvent> events;
  std::vector<void*> memory, pinned;
};

// Ranks whose GPUs have a simulated NCCL.
class Group {
 public:
  Group(int size, Schedule schedule, DeviceTransport wanted = DeviceTransport::kAuto,
        int without_nccl = -1, const Ranks::Decorate& decorate = nullptr)
      : group_(size) {
    for (int rank = 0; rank < size; ++rank) {
      places_.push_back(std::make_unique<Place>(rank, schedule));
    }
    const auto options_of = [&](int rank) {
      EngineOptions options = TestOptions();
      options.collective_timeout = std::chrono::seconds(TFMPI_SANITIZED ? 20 : 2);
      options.vote_patience = std::chrono::hours(1);  // however busy the machine is
      options.gpus.wanted = wanted;
      options.gpus.facts = [=](const Gpu& gpu) {
        DeviceFacts facts;
        facts.gpu = gpu.description();
        facts.nccl_version = rank == without_nccl ? 0 : 23203;
        return facts;
      };
      options.gpus.make = [this, rank](Gpu*, TimePoint, std::unique_ptr<DeviceCollectives>* made) {
        return group_.Join(rank, places_[rank]->gpu.get(), made);
      };
      return options;
    };
    ranks_ = std::make_unique<Ranks>(size, options_of, decorate);
  }

  Ranks& ranks() { return *ranks_; }
  Place& operator[](int rank) { return *places_[rank]; }
  SimulatedGroup& nccl() { return group_; }

 private:
  SimulatedGroup group_;
  std::vector<std::unique_ptr<Place>> places_;
  std::unique_ptr<Ranks> ranks_;  // ends first
};

std::string Wait(Engine& engine, std::vector<Request> requests) {
  std::vector<Ending> endings;
  for (Request& request : requests) endings.push_back(Submit(engine, std::move(request)));
  return AwaitAll(endings);
}

Request GpuRequest(const Job& job, const void* in, void* out, const GpuMemory& memory) {
  Request request = MakeRequest(job, in, out);
  request.signature.on_gpu = true;
  request.memory = memory;
  return request;
}

// One tensor of each job, on every rank.
void RunStep(Group& group, const std::vector<Job>& jobs) {
  const int size = group.ranks().size();
  group.ranks().Each([&](int rank, Engine& engine) {
    std::vector<void*> data;
    std::vector<Request> requests;
    for (const Job& job : jobs) {
      const std::vector<char> input = MakeInput(job, rank);
      data.push_back(group[rank].Put(input.data(), input.size()));
    }
    const GpuMemory memory = group[rank].Ready();
    for (size_t i = 0; i < jobs.size(); ++i) {
      requests.push_back(GpuRequest(jobs[i], data[i], data[i], memory));
    }
    EXPECT_EQ(Wait(engine, std::move(requests)), "");
    for (size_t i = 0; i < jobs.size(); ++i) {
      const std::vector<char> result = group[rank].Get(data[i], MakeInput(jobs[i], rank).size());
      EXPECT_EQ(CheckOutput(jobs[i], AllRanks(size), result.data()), "") << rank;
    }
  });
}

struct DirectCase {
  int ranks;
  Schedule schedule;
};

class DirectTest : public TimedTest, public ::testing::WithParamInterface<DirectCase> {};

TEST_P(DirectTest, SmallOnesTogetherAndLargeOnesAlone) {
  Group group(GetParam().ranks, GetParam().schedule);
  std::vector<Job> jobs = {{"large", DataType::kFloat32, ReduceOp::kAverage, 200001, 1}};
  for (DataType type : {DataType::kFloat32, DataType::kFloat64, DataType::kComplex64}) {
    for (size_t count : {size_t{1}, size_t{7}, size_t{100}}) {
      const std::string name = std::string(Name(type)) + std::to_string(count);
      jobs.push_back({name, type, ReduceOp::kAverage, count, 2});
    }
  }
  for (int step = 0; step < 3; ++step) {
    for (Job& job : jobs) job.seed = step;
    RunStep(group, jobs);
  }
  for (int rank = 0; rank < GetParam().ranks; ++rank) {
    EXPECT_GT(group.nccl().reductions(rank), 3) << "all was staged";
  }
  group.ranks().JoinAll();
}

TEST_P(DirectTest, WeightsOnTheGpuAndNothingOfOneRank) {
  Group group(GetParam().ranks, GetParam().schedule);
  const size_t count = 70000;
  group.ranks().Each([&](int rank, Engine& engine) {
    std::vector<float> values(count, static_cast<float>(rank));
    // What counts as nothing may be anything.
    if (rank == 0) values.assign(count, std::numeric_limits<float>::quiet_NaN());
    const float weight = rank == 0 ? 0.0f : 1.5f;
    void* const data = group[rank].Put(values.data(), count * sizeof(float));
    const void* const there = group[rank].Put(&weight, sizeof(float));
    GpuMemory memory = group[rank].Ready();
    memory.weight_on_gpu = there;
    std::vector<Request> requests;
    requests.push_back(
        GpuRequest({"w", DataType::kFloat32, ReduceOp::kAverage, count, 0}, data, data, memory));
    requests.back().signature.weighted = true;
    EXPECT_EQ(Wait(engine, std::move(requests)), "");
    const std::vector<char> result = group[rank].Get(data, count * sizeof(float));
    const int size = group.ranks().size();
    float expected = 0, first = 0;
    for (int other = 1; other < size; ++other) {
      expected += 1.5f * static_cast<float>(other) / static_cast<float>(size);
    }
    std::memcpy(&first, result.data() + (count - 1) * sizeof(float), sizeof(float));
    EXPECT_NEAR(first, expected, 1e-5) << rank;
  });
  group.ranks().JoinAll();
}

// A response of several averages, whose weights differ by rank and by average: the ranks make the
// same calls all the same.
TEST_P(DirectTest, WeightsThatDifferByRankAndTensor) {
  Group group(GetParam().ranks, GetParam().schedule);
  const int size = group.ranks().size();
  const auto weight_of = [](int rank, int tensor) { return rank == tensor ? 0.5 : 1.0; };
  group.ranks().Each([&](int rank, Engine& engine) {
    std::vector<void*> data;
    std::vector<Request> requests;
    const float value = static_cast<float>(rank + 1);
    for (int i = 0; i < 3; ++i) data.push_back(group[rank].Put(&value, sizeof(float)));
    const GpuMemory memory = group[rank].Ready();
    for (int i = 0; i < 3; ++i) {
      const std::string name = "w" + std::to_string(i);
      requests.push_back(GpuRequest({name, DataType::kFloat32, ReduceOp::kAverage, 1, 0}, data[i],
                                    data[i], memory));
      requests.back().signature.weighted = true;
      requests.back().scale = weight_of(rank, i);
    }
    EXPECT_EQ(Wait(engine, std::move(requests)), "");
    for (int i = 0; i < 3; ++i) {
      float expected = 0, found = 0;
      for (int other = 0; other < size; ++other) {
        expected += static_cast<float>(weight_of(other, i) * (other + 1) / size);
      }
      std::memcpy(&found, group[rank].Get(data[i], sizeof(float)).data(), sizeof(float));
      EXPECT_NEAR(found, expected, 1e-6) << rank << " " << i;
    }
  });
  group.ranks().JoinAll();
}

TEST_P(DirectTest, WhatNotAllTakePartInIsStaged) {
  Group group(GetParam().ranks, GetParam().schedule);
  RunStep(group, {{"first", DataType::kFloat32, ReduceOp::kAverage, 10, 1}});
  const int last = group.ranks().size() - 1;
  const int before = group.nccl().reductions(0);
  std::vector<int> others = AllRanks(group.ranks().size());
  others.pop_back();
  const Job job = {"second", DataType::kFloat32, ReduceOp::kAverage, 33, 2};
  group.ranks().Each([&](int rank, Engine& engine) {
    if (rank != last) {
      const std::vector<char> input = MakeInput(job, rank);
      void* const data = group[rank].Put(input.data(), input.size());
      std::vector<Request> requests;
      requests.push_back(GpuRequest(job, data, data, group[rank].Ready()));
      EXPECT_EQ(Wait(engine, std::move(requests)), "");
      const std::vector<char> result = group[rank].Get(data, input.size());
      EXPECT_EQ(CheckOutput(job, others, result.data()), "");
    }
    EXPECT_TRUE(engine.Join().ok());
  });
  EXPECT_EQ(group.nccl().reductions(0), before);
}

// Powers of two: a rank's share of the average is exact then, as CheckOutput wants it.
INSTANTIATE_TEST_SUITE_P(Ranks, DirectTest,
                         ::testing::Values(DirectCase{2, Schedule::kRandom},
                                           DirectCase{2, Schedule::kLate},
                                           DirectCase{4, Schedule::kRandom}));

using DirectChoiceTest = TimedTest;

TEST_F(DirectChoiceTest, OneRankWithoutNcclMakesAllOfThemStage) {
  Group group(2, Schedule::kRandom, DeviceTransport::kAuto, /*without_nccl=*/1);
  RunStep(group, {{"x", DataType::kFloat32, ReduceOp::kAverage, 10, 1}});
  EXPECT_EQ(group.nccl().reductions(0), 0);
  group.ranks().JoinAll();
}

TEST_F(DirectChoiceTest, WhatIsWantedAndCannotBeIsAnError) {
  Group group(2, Schedule::kRandom, DeviceTransport::kNccl, /*without_nccl=*/1);
  const Job job = {"x", DataType::kFloat32, ReduceOp::kAverage, 10, 1};
  group.ranks().Each([&](int rank, Engine& engine) {
    const std::vector<char> input = MakeInput(job, rank);
    void* const data = group[rank].Put(input.data(), input.size());
    std::vector<Request> requests;
    requests.push_back(GpuRequest(job, data, data, group[rank].Ready()));
    EXPECT_NE(Wait(engine, std::move(requests)).find("NCCL"), std::string::npos);
  });
}

// After an average of which rank 1 loses the reduction.
void ExpectTheEnd(Group& group, const Job& job, const std::string& why) {
  group.ranks().Each([&](int rank, Engine& engine) {
    const std::vector<char> input = MakeInput(job, rank);
    void* const data = group[rank].Put(input.data(), input.size());
    std::vector<Request> requests;
    requests.push_back(GpuRequest(job, data, data, group[rank].Ready()));
    Wait(engine, std::move(requests));  // it is enqueued: all is well so far
    const TimePoint limit = Clock::now() + std::chrono::seconds(TFMPI_SANITIZED ? 40 : 10);
    while (engine.failure().ok() && Clock::now() < limit) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_FALSE(engine.failure().ok());
    EXPECT_NE(engine.failure().message().find(why), std::string::npos)
        << engine.failure().message();
    group[rank].gpu->Finish(group[rank].stream);
  });
}

// What is still under way when the ranks end together.
TEST_F(DirectChoiceTest, AGpuThatHasNotEndedIsHeardOfByAll) {
  for (const bool lost : {false, true}) {
    SimulatedGroup nccl(2);
    Place first(0, Schedule::kRandom), second(1, Schedule::kRandom);
    LocalGroup group(2);
    std::vector<std::string> said(2);
    if (lost) nccl.LoseWork(1, 1);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        Place& place = rank == 0 ? first : second;
        GpuOptions options;
        options.facts = [](const Gpu& gpu) { return DeviceFacts{gpu.description(), 23203}; };
        options.make = [&](Gpu*, TimePoint, std::unique_ptr<DeviceCollectives>* made) {
          return nccl.Join(rank, place.gpu.get(), made);
        };
        const std::unique_ptr<Transport> transport = group.CreateTransport(rank);
        GpuReduction reduction(transport.get(), options);
        const Job job = {"x", DataType::kFloat32, ReduceOp::kSum, 10, 1};
        const std::vector<char> input = MakeInput(job, rank);
        void* const data = place.Put(input.data(), input.size());
        Request request = GpuRequest(job, data, data, place.Ready());
        const TimePoint late = Clock::now() + std::chrono::seconds(20);
        EXPECT_EQ(reduction.Allreduce({{request.signature, &request}}, 2, 1, late).message(), "");
        if (rank == 1 && !lost) place.gpu->Fail(SimulatedGpu::Call::kQuery, 1);
        const TimePoint soon = Clock::now() + std::chrono::milliseconds(200);
        said[rank] = reduction.Drain(lost ? soon : late).message();
        reduction.Abort();
        place.gpu->Finish(place.stream);
      });
    }
    for (std::thread& thread : threads) thread.join();
    const auto own = [](const std::string& gpu) {
      return "a reduction between GPUs (simulated NCCL) has not ended on simulated GPU " + gpu +
             " within TF_MPI_STALL_TIMEOUT (at most 300 s): another rank or this GPU hangs";
    };
    EXPECT_NE(said[0].find(lost ? own("0") : "a reduction on another rank's GPU has not ended"),
              std::string::npos)
        << said[0];
    EXPECT_NE(said[1].find(lost ? own("1") : "cuEventQuery on simulated GPU 1"), std::string::npos)
        << said[1];
  }
}

// The ranks still have the time to agree.
TEST_F(DirectChoiceTest, WhatHangsAsItStartsMakesAllOfThemStage) {
  Place first(0, Schedule::kRandom), second(1, Schedule::kRandom);
  LocalGroup group(2);
  std::vector<std::string> said(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      Place& place = rank == 0 ? first : second;
      GpuOptions options;
      options.facts = [](const Gpu& gpu) { return DeviceFacts{gpu.description(), 23203}; };
      options.log = [&, rank](const std::string& line) { said[rank] = line; };
      options.make = [](Gpu*, TimePoint deadline, std::unique_ptr<DeviceCollectives>*) {
        while (Clock::now() < deadline) Clock::Sleep(std::chrono::milliseconds(1));
        return Status(Code::kDeadlineExceeded, "it hangs");
      };
      const std::unique_ptr<Transport> transport = group.CreateTransport(rank);
      GpuReduction reduction(transport.get(), options);
      const Job job = {"x", DataType::kFloat32, ReduceOp::kSum, 10, 1};
      const std::vector<char> input = MakeInput(job, rank);
      void* const data = place.Put(input.data(), input.size());
      Request request = GpuRequest(job, data, data, place.Ready());
      const TimePoint deadline = Clock::now() + std::chrono::seconds(TFMPI_SANITIZED ? 20 : 4);
      EXPECT_EQ(reduction.Allreduce({{request.signature, &request}}, 2, 1, deadline).message(), "");
      const std::vector<char> result = place.Get(data, input.size());
      EXPECT_EQ(CheckOutput(job, AllRanks(2), result.data()), "");
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& line : said) {
    EXPECT_EQ(line, "NCCL did not start: it hangs; gradients are staged through the hosts");
  }
}

// A reduction that never ends, as when a peer is lost, fails on all ranks, and no stream stays
// held.
TEST_F(DirectChoiceTest, OneThatDoesNotEndEndsTheJob) {
  const Job job = {"x", DataType::kFloat32, ReduceOp::kAverage, 10, 1};
  for (const bool told : {true, false}) {
    Group group(2, Schedule::kRandom);
    RunStep(group, {job});
    told ? group.nccl().FailWork(1, 1) : group.nccl().LoseWork(1, 1);
    ExpectTheEnd(group, job,
                 told ? "simulated NCCL: rank 1 has failed (as the test wants it)"
                      : "a reduction between GPUs (simulated NCCL) has not ended on simulated GPU");
    group.nccl().TakeComplaints();
  }
}

// Rank 0 votes last, enqueues, and votes for what comes next, before rank 1 has seen the outcome.
TEST_F(DirectChoiceTest, ARankThatLooksLateDoesWhatAllVotedFor) {
  Group group(2, Schedule::kRandom, DeviceTransport::kAuto, /*without_nccl=*/-1, OneLooksLate);
  constexpr int kSteps = 12;
  group.ranks().Each([&](int rank, Engine& engine) {
    for (int step = 0; step < kSteps; ++step) {
      if (rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      std::vector<Job> jobs;
      std::vector<void*> data;
      for (const char* const name : {"a", "b"}) {  // the host waits for neither on the GPU
        jobs.push_back({name, DataType::kFloat32, ReduceOp::kAverage, 10, step});
        const std::vector<char> input = MakeInput(jobs.back(), rank);
        data.push_back(group[rank].Put(input.data(), input.size()));
        std::vector<Request> requests;
        requests.push_back(GpuRequest(jobs.back(), data.back(), data.back(), group[rank].Ready()));
        ASSERT_EQ(Wait(engine, std::move(requests)), "") << step;
      }
      for (size_t i = 0; i < jobs.size(); ++i) {
        const std::vector<char> result = group[rank].Get(data[i], MakeInput(jobs[i], rank).size());
        EXPECT_EQ(CheckOutput(jobs[i], AllRanks(2), result.data()), "");
      }
    }
    EXPECT_GT(engine.stats().predicted, uint64_t{kSteps}) << "they did not vote";
  });
  group.ranks().JoinAll();
}

}  // namespace
}  // namespace tfmpi
