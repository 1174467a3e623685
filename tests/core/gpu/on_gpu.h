// Shared by the tests of reductions on GPUs. Each rank has a GPU, or shares one, and a stream. Its
// gradients are computed late on that stream, and only the stream's order protects its reads of the
// results.

#ifndef TFMPI_TESTS_CORE_GPU_ON_GPU_H_
#define TFMPI_TESTS_CORE_GPU_ON_GPU_H_

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/core/device/bouncing_messages.h"
#include "tests/core/device/local_messages.h"
#include "tests/core/device/test_gpu.h"
#include "tests/core/support/job.h"
#include "tests/core/support/ranks.h"

namespace tfmpi {

using Schedule = SimulatedGpu::Schedule;

inline const Job kJob = {"x", DataType::kFloat32, ReduceOp::kAverage, 300, 1};

// For every way of reduction: small, so that a quick test has several chunks.
inline constexpr size_t kStagedChunkBytes = size_t{64} << 10;

// The options of an engine that reduces in this way, or fails.
inline EngineOptions OptionsOf(DeviceTransport way) {
  EngineOptions options = TestOptions();
  options.gpus.wanted = way;
  options.gpus.staged_chunk_bytes = kStagedChunkBytes;
  options.gpus.shared_chunk_bytes = kStagedChunkBytes;
  options.gpus.mpi_chunk_bytes = kStagedChunkBytes;
  return options;
}

// Collects lines that engines log.
class Said {
 public:
  std::function<void(const std::string&)> Log() {
    return [this](const std::string& line) {
      std::lock_guard<std::mutex> lock(mutex_);
      said_ += line;
    };
  }
  // The lines since the last call.
  std::string Take() {
    std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(said_, {});
  }

 private:
  std::mutex mutex_;
  std::string said_;
};

// A GPU for each rank, or one that all share: for kIpc, and with TFMPI_TEST_GPU=1.
class Gpus {
 public:
  Gpus(int ranks, Schedule schedule, DeviceTransport way) {
    const bool one = TestGpu::IsReal() || way == DeviceTransport::kIpc;
    for (int rank = 0; rank < ranks; ++rank) {
      SimulatedGpu::Options options;
      options.schedule = schedule;
      options.seed = static_cast<uint64_t>(rank) + 7;
      gpus_.push_back(one && rank != 0 ? std::make_unique<TestGpu>(gpus_.front().get())
                                       : std::make_unique<TestGpu>(options));
      streams_.push_back(gpus_.back()->NewStream());
    }
  }
  // The first one last, because others may share its GPU.
  ~Gpus() {
    while (!gpus_.empty()) gpus_.pop_back();
  }

  TestGpu& operator[](int rank) { return *gpus_[rank]; }
  GpuStream stream(int rank) const { return streams_[rank]; }

  // Memory that is ready once all work so far on the rank's stream has ended.
  GpuMemory Ready(int rank) {
    TestGpu& gpu = *gpus_[rank];
    GpuMemory memory;
    memory.gpu = &*gpu;
    memory.stream = streams_[rank];
    memory.ready = gpu.NewEvent();
    EXPECT_TRUE(gpu->Record(memory.ready, memory.stream).ok());
    return memory;
  }
  // Enqueues a copy of `number` to the rank's GPU.
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

// Makes the MPI of the ranks accept memory of these GPUs.
inline Ranks::Decorate CudaAwareRanks(Gpus* gpus, LocalMessages* messages) {
  return [gpus, messages](std::unique_ptr<Transport> transport, int rank) {
    TestGpu& gpu = (*gpus)[rank];
    return std::make_unique<CudaAware>(std::move(transport), &*gpu, gpu.simulated(),
                                       messages->Join(rank));
  };
}

// One rank's tensors of a list of jobs, on its GPU. Odd jobs are reduced in place.
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
inline std::string RunOne(Engine& engine, Request request) {
  std::vector<Ending> endings;
  endings.push_back(Submit(engine, std::move(request)));
  return AwaitAll(endings);
}

inline Request RequestOnGpu(const Job& job, const void* in, void* out, const GpuMemory& memory) {
  Request request = MakeRequest(job, in, out);
  request.signature.on_gpu = true;
  request.memory = memory;
  return request;
}

// Reduces one tensor of each job on every rank, and checks the results: the same bits on all.
inline void RunStep(Ranks& ranks, Gpus& gpus, const std::vector<Job>& jobs) {
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

}  // namespace tfmpi

#endif  // TFMPI_TESTS_CORE_GPU_ON_GPU_H_
