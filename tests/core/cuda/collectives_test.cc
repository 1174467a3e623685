// Reductions between GPUs: simulated ones and, with TFMPI_TEST_GPU=1, NCCL's between ranks that
// share the machine's first GPU (TFMPI_TEST_NCCL says where the library is).

#include "tensorflow_patches/core/device/collectives.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tensorflow_patches/core/device/driver.h"
#include "tensorflow_patches/core/device/nccl.h"
#include "tests/core/device/simulated_collectives.h"
#include "tests/core/device/test_gpu.h"
#include "tests/core/support/elements.h"
#include "tests/core/support/job.h"
#include "tests/core/support/ranks.h"

namespace tfmpi {
namespace {

// What one rank works with.
struct Rank {
  TestGpu& gpu;
  DeviceCollectives& collectives;
  GpuStream stream;
};

class CollectivesTest : public TimedTest {
 protected:
  static const Nccl& RealNccl() {
    static const Nccl* const nccl = [] {
      // Read when the library is loaded.
      setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 0);
      const char* const path = std::getenv("TFMPI_TEST_NCCL");
      auto* const loaded = new Nccl;
      const Status status = LoadNccl(path == nullptr ? "libnccl.so.2" : path, loaded);
      if (!status.ok()) DieOfHang(status.message());
      return loaded;
    }();
    return *nccl;
  }

  // `body` for every rank, on a thread and a stream of its own. All share one GPU, or each has one.
  void Each(int size, const std::function<void(int rank, Rank& mine)>& body,
            const SimulatedGpu::Options& options = SimulatedGpu::Options()) {
    if (size > 1 && TestGpu::IsReal()) {
      int version = 0;
      RealNccl().GetVersion(&version);
      if (version < 23000) GTEST_SKIP() << "NCCL " << version << " wants a GPU for each rank";
    }
    NcclId id = {};
    if (TestGpu::IsReal()) {
      ASSERT_EQ(NewNcclId(RealNccl(), &id).message(), "");
    }
    SimulatedGroup group(size, true);
    group_ = &group;
    TestGpu shared(options);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        TestGpu gpu(&shared);
        const GpuStream stream = gpu.NewStream();
        std::unique_ptr<DeviceCollectives> collectives;
        const Status status = TestGpu::IsReal() ? MakeReal(rank, size, id, stream, &collectives)
                                                : group.Join(rank, gpu.simulated(), &collectives);
        ASSERT_EQ(status.message(), "");
        Rank mine = {gpu, *collectives, stream};
        body(rank, mine);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  static Status MakeReal(int rank, int size, const NcclId& id, GpuStream stream,
                         std::unique_ptr<DeviceCollectives>* collectives) {
    NcclOptions options;
    const Status status = ContextOf(stream, &options.driver, &options.context);
    if (!status.ok()) return status;
    options.rank = rank;
    options.size = size;
    options.id = id;
    options.deadline = Clock::now() + std::chrono::seconds(30);
    options.max_ctas = 8;
    return MakeNcclCollectives(RealNccl(), options, collectives);
  }

  SimulatedGroup* group_ = nullptr;  // of Each
};

TimePoint Soon() { return Clock::now() + std::chrono::seconds(30); }

void CheckReduction(const Job& job, int size, int rank, Rank& mine) {
  const std::vector<char> input = MakeInput(job, rank);
  const double scale = job.op == ReduceOp::kAverage ? 1.0 / size : 1;
  void* in = nullptr;
  ASSERT_EQ(mine.collectives.NewBuffer(input.size(), &in).message(), "");
  void* const out = mine.gpu.NewMemory(input.size());
  mine.gpu.Write(in, input, mine.stream);
  for (void* const target : {out, in}) {
    EXPECT_EQ(mine.collectives
                  .Allreduce(in, target, job.count, job.type, job.op, scale, mine.stream, Soon())
                  .message(),
              "");
    const std::vector<char> found = mine.gpu.Read(target, input.size(), mine.stream);
    EXPECT_EQ(CheckOutput(job, AllRanks(size), found.data()), "") << "rank " << rank;
  }
  EXPECT_EQ(mine.collectives.Poll().message(), "");
  mine.collectives.DeleteBuffer(in);
}

// In place, and from elsewhere: what the halves give together.
void CheckHalves(const Job& job, int size, int rank, Rank& mine) {
  const std::vector<char> input = MakeInput(job, rank);
  const size_t share = job.count / static_cast<size_t>(size);
  const double scale = job.op == ReduceOp::kAverage ? 1.0 / size : 1;
  void* const in = mine.gpu.NewMemory(input.size());
  void* const out = mine.gpu.NewMemory(input.size());
  mine.gpu.Write(in, input, mine.stream);
  for (void* const target : {out, in}) {
    void* const own = static_cast<char*>(target) + rank * share * SizeOf(job.type);
    EXPECT_EQ(
        mine.collectives.ReduceScatter(in, own, share, job.type, job.op, scale, mine.stream, Soon())
            .message(),
        "");
    EXPECT_EQ(
        mine.collectives.Allgather(own, target, share, job.type, mine.stream, Soon()).message(),
        "");
    const std::vector<char> found = mine.gpu.Read(target, input.size(), mine.stream);
    EXPECT_EQ(CheckOutput(job, AllRanks(size), found.data()), "") << "rank " << rank;
  }
}

TEST_F(CollectivesTest, TheHalvesOfEveryReduction) {
  constexpr int kSize = 2;
  Each(kSize, [&](int rank, Rank& mine) {
    for (const DataType type : kAllTypes) {
      for (int op = 0; op < kNumReduceOps; ++op) {
        const Job job = {"t", type, static_cast<ReduceOp>(op), 1002, op};
        if (NcclSupports(type, job.op)) CheckHalves(job, kSize, rank, mine);
      }
    }
  });
}

TEST_F(CollectivesTest, EveryTypeAndReduction) {
  constexpr int kSize = 2;
  Each(kSize, [&](int rank, Rank& mine) {
    for (const DataType type : kAllTypes) {
      for (int op = 0; op < kNumReduceOps; ++op) {
        const Job job = {"t", type, static_cast<ReduceOp>(op), 1001, op};
        if (NcclSupports(type, job.op)) {
          CheckReduction(job, kSize, rank, mine);
        } else {
          EXPECT_EQ(
              mine.collectives.Allreduce(nullptr, nullptr, 1, type, job.op, 1, mine.stream, Soon())
                  .code(),
              Code::kInvalidArgument);
        }
      }
    }
  });
}

TEST_F(CollectivesTest, OneRankAlone) {
  Each(1, [](int rank, Rank& mine) {
    CheckReduction({"t", DataType::kFloat32, ReduceOp::kAverage, 5000, 1}, 1, rank, mine);
  });
}

// Also where one rank's scale is 1, and it says so by a sum.
TEST_F(CollectivesTest, RanksWeighDifferently) {
  constexpr float kScales[] = {1, 0.25f};
  Each(2, [&](int rank, Rank& mine) {
    const std::vector<float> values = {1.0f + static_cast<float>(rank), 4, -8};
    std::vector<char> bytes(sizeof(float) * values.size());
    std::memcpy(bytes.data(), values.data(), bytes.size());
    void* const memory = mine.gpu.NewMemory(bytes.size());
    mine.gpu.Write(memory, bytes, mine.stream);
    EXPECT_EQ(mine.collectives
                  .Allreduce(memory, memory, values.size(), DataType::kFloat32,
                             rank == 0 ? ReduceOp::kSum : ReduceOp::kAverage, kScales[rank],
                             mine.stream, Soon())
                  .message(),
              "");
    std::vector<float> found(values.size());
    std::memcpy(found.data(), mine.gpu.Read(memory, bytes.size(), mine.stream).data(),
                bytes.size());
    EXPECT_EQ(found, (std::vector<float>{1 + 0.25f * 2, 5, -10}));
  });
}

TEST_F(CollectivesTest, OnlyAnAverageOfRealNumbersHasAScale) {
  Each(1, [](int, Rank& mine) {
    void* const memory = mine.gpu.NewMemory(8);
    const auto refused = [&](DataType type, ReduceOp op) {
      return !mine.collectives.Allreduce(memory, memory, 1, type, op, 0.5, mine.stream, Soon())
                  .ok();
    };
    EXPECT_TRUE(refused(DataType::kFloat32, ReduceOp::kSum));
    EXPECT_TRUE(refused(DataType::kFloat32, ReduceOp::kMax));
    EXPECT_TRUE(refused(DataType::kInt32, ReduceOp::kAverage));
    EXPECT_FALSE(NcclSupports(DataType::kComplex64, ReduceOp::kProduct));
  });
}

// After it a reduction's stream goes on, with whatever is there.
TEST_F(CollectivesTest, AbortEndsWhatWaitsForALostRank) {
  Each(2, [](int rank, Rank& mine) {
    CheckReduction({"t", DataType::kFloat32, ReduceOp::kSum, 100, 1}, 2, rank, mine);
    if (rank == 1) {
      mine.collectives.Abort();
      return;
    }
    void* const memory = mine.gpu.NewMemory(400);
    const GpuEvent event = mine.gpu.NewEvent();
    EXPECT_EQ(mine.collectives
                  .Allreduce(memory, memory, 100, DataType::kFloat32, ReduceOp::kSum, 1,
                             mine.stream, Soon())
                  .message(),
              "");
    EXPECT_EQ(mine.gpu->Record(event, mine.stream).message(), "");
    Clock::Sleep(std::chrono::milliseconds(20));
    bool ended = true;
    EXPECT_EQ(mine.gpu->Query(event, &ended).message(), "");
    EXPECT_FALSE(ended);
    mine.collectives.Abort();
    mine.gpu.Await(event);
    EXPECT_FALSE(mine.collectives
                     .Allreduce(memory, memory, 1, DataType::kFloat32, ReduceOp::kSum, 1,
                                mine.stream, Soon())
                     .ok());
  });
}

// Of the simulation alone.
class SimulatedCollectivesTest : public CollectivesTest {
 protected:
  static void Reduce(Rank& mine, void* memory, size_t count, ReduceOp op) {
    EXPECT_EQ(mine.collectives
                  .Allreduce(memory, memory, count, DataType::kFloat32, op, 1, mine.stream, Soon())
                  .message(),
              "");
  }

  std::atomic<int> complaints_{0};

  void SetUp() override {
    if (TestGpu::IsReal()) GTEST_SKIP() << "of the simulation alone";
    ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  }
};

TEST_F(SimulatedCollectivesTest, RefusesRanksThatShareAGpu) {
  SimulatedGroup group(2);
  SimulatedGpu gpu;
  SimulatedGpu other;
  std::unique_ptr<DeviceCollectives> first;
  std::unique_ptr<DeviceCollectives> second;
  EXPECT_TRUE(group.Join(0, &gpu, &first).ok());
  EXPECT_EQ(group.Join(1, &gpu, &second).message(),
            "simulated NCCL: ranks 0 and 1 share simulated GPU 0");
  EXPECT_TRUE(group.Join(1, &other, &second).ok());
}

TEST_F(SimulatedCollectivesTest, AnErrorThatComesLaterIsToldToAll) {
  Each(2, [this](int rank, Rank& mine) {
    if (rank == 1) group_->FailWork(1, 2);
    constexpr size_t kBytes = 400;
    void* const memory = mine.gpu.NewMemory(kBytes);
    const GpuEvent event = mine.gpu.NewEvent();
    mine.gpu.Write(memory, std::vector<char>(kBytes, 0), mine.stream);
    Reduce(mine, memory, 100, ReduceOp::kSum);
    mine.gpu.Read(memory, kBytes, mine.stream);
    if (rank == 1) {
      EXPECT_EQ(mine.collectives.Poll().message(), "") << "it has not come to the second";
    }
    EXPECT_EQ(group_->reductions(rank), 1);
    Reduce(mine, memory, 100, ReduceOp::kSum);
    EXPECT_EQ(mine.gpu->Record(event, mine.stream).message(), "");
    while (mine.collectives.Poll().ok()) Clock::Sleep(std::chrono::microseconds(50));
    EXPECT_EQ(mine.collectives.Poll().message(),
              "simulated NCCL: rank 1 has failed (as the test wants it)");
    bool ended = true;
    EXPECT_EQ(mine.gpu->Query(event, &ended).message(), "");
    EXPECT_FALSE(ended);
    mine.collectives.Abort();
    mine.gpu.Await(event);
    EXPECT_EQ(group_->reductions(rank), 1);
  });
}

TEST_F(SimulatedCollectivesTest, ACallFailsOnDemand) {
  Each(1, [this](int, Rank& mine) {
    group_->FailCall(0, 2);
    void* const memory = mine.gpu.NewMemory(4);
    const auto reduce = [&] {
      return mine.collectives.Allreduce(memory, memory, 1, DataType::kFloat32, ReduceOp::kSum, 1,
                                        mine.stream, Soon());
    };
    EXPECT_TRUE(reduce().ok());
    EXPECT_EQ(reduce().code(), Code::kUnavailable);
    EXPECT_TRUE(reduce().ok());
  });
}

TEST_F(SimulatedCollectivesTest, ComplainsOfRanksThatDisagree) {
  Each(2, [this](int rank, Rank& mine) {
    void* const memory = mine.gpu.NewMemory(8);
    Reduce(mine, memory, 1 + static_cast<size_t>(rank), ReduceOp::kSum);
    while (mine.collectives.Poll().ok()) Clock::Sleep(std::chrono::microseconds(50));
    const std::vector<std::string> complaints = group_->TakeComplaints();
    complaints_ += static_cast<int>(complaints.size());
  });
  EXPECT_EQ(complaints_, 1);
}

// A gradient that another stream has not made yet.
TEST_F(SimulatedCollectivesTest, AReductionThatDoesNotWaitTakesOldData) {
  const auto body = [this] {
    SimulatedGpu::Options late;
    late.schedule = SimulatedGpu::Schedule::kLate;
    const auto reduce = [](int rank, Rank& mine) {
      SimulatedGpu& gpu = *mine.gpu.simulated();
      const GpuStream other = mine.gpu.NewStream();
      void* const memory = mine.gpu.NewMemory(4);
      const auto fill = [&](float value) {
        const auto kernel = [=, &gpu] { *gpu.Inside<float>(memory, 1) = value; };
        EXPECT_TRUE(gpu.Launch(other, kernel, {memory}).ok());
      };
      fill(1);
      gpu.Finish(other);
      fill(10);
      Reduce(mine, memory, 1, ReduceOp::kSum);
      const std::vector<char> found = mine.gpu.Read(memory, 4, mine.stream);
      float sum = 0;
      std::memcpy(&sum, found.data(), 4);
      EXPECT_LT(sum, 20) << "rank " << rank;  // on a busy machine one rank's may be new
    };
    Each(2, reduce, late);
  };
#if defined(__SANITIZE_THREAD__)
  EXPECT_DEATH(body(), "data race");
#else
  body();
#endif
}

}  // namespace
}  // namespace tfmpi
