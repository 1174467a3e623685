// Ranks whose MPI takes memory of GPUs, or says so: when it is used, and where something goes
// wrong. That what they reduce is right: staged_test.cc.

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/core/gpu/on_gpu.h"
#include "tests/core/support/elements.h"

namespace tfmpi {
namespace {

using Call = SimulatedGpu::Call;
using Fault = LocalMessages::Fault;
using MpiCall = LocalMessages::Call;

constexpr int kSlots = 2;  // blocks of a rank's GPU that MPI is given
// Where somebody is to run into it. The trial has half of it, also on a machine that is busy.
constexpr std::chrono::seconds kShortTimeout{TFMPI_SANITIZED ? 10 : 4};

class CudaAwareTest : public TimedTest {
 protected:
  void SetUp() override {
    if (TestGpu::IsReal()) GTEST_SKIP() << "a real GPU does not fail on demand";
  }

  EngineOptions Options(DeviceTransport wanted) {
    EngineOptions options = OptionsOf(wanted);
    if (has_short_timeout_) options.collective_timeout = kShortTimeout;
    options.log = said_.Log();
    return options;
  }
  Ranks::OptionsOf All(DeviceTransport wanted) {
    return [this, wanted](int) { return Options(wanted); };
  }
  // By rank 0, since the last call.
  std::string TakeSaid() { return said_.Take(); }

  // "" or the error of an average of kJob.
  std::string Average(int rank, Engine& engine) {
    OnGpu tensors(gpus_, {kJob}, rank);
    return RunOne(engine,
                  RequestOnGpu(kJob, tensors.inputs[0], tensors.outputs[0], gpus_.Ready(rank)));
  }
  void ExpectLeft(int blocks) {
    for (int rank = 0; rank < 2; ++rank) gpus_[rank].simulated()->ExpectLeft(blocks);
  }
  // Staged on all ranks, with the right result, and for this reason.
  void ExpectStaged(DeviceTransport wanted, const std::string& reason) {
    Ranks ranks(2, All(wanted), CudaAwareRanks(&gpus_, &mpi_));
    RunStep(ranks, gpus_, {kJob});
    const int before = mpi_.received(0);
    RunStep(ranks, gpus_, {kJob});
    EXPECT_EQ(mpi_.received(0), before);
    ranks.JoinAll();
    const std::string said = TakeSaid();
    EXPECT_NE(said.find(reason), std::string::npos) << said;
    EXPECT_NE(said.find("staged through the host"), std::string::npos) << said;
  }
  // The job ends on both ranks within the deadline; on rank 1 for this reason.
  void ExpectEnd(const std::string& reason) {
    has_short_timeout_ = true;
    Ranks ranks(2, All(DeviceTransport::kMpi), CudaAwareRanks(&gpus_, &mpi_));
    RunStep(ranks, gpus_, {kJob});
    EXPECT_EQ(TakeSaid(), "by CUDA-aware MPI on all ranks");
    std::vector<std::string> said(2);
    fail_();
    ranks.Each([&](int rank, Engine& engine) { said[rank] = Average(rank, engine); });
    EXPECT_NE(said[0], "");
    EXPECT_NE(said[1].find(reason), std::string::npos) << said[1];
    if (after_) after_();
  }

  Gpus gpus_{2, Schedule::kRandom, DeviceTransport::kMpi};
  LocalMessages mpi_{2};
  std::function<void()> fail_, after_;
  bool has_short_timeout_ = false;

 private:
  Said said_;
};

TEST_F(CudaAwareTest, IsUsedWhereNothingElseCanBe) {
  const auto options_of = [this](int rank) {
    EngineOptions options = Options(DeviceTransport::kAuto);
    options.gpus.facts = [rank](const Gpu&) {
      DeviceFacts facts;
      facts.gpu = "GPU " + std::to_string(rank);
      facts.cuda_aware = true;
      return facts;
    };
    return options;
  };
  Ranks ranks(2, options_of, CudaAwareRanks(&gpus_, &mpi_));
  RunStep(ranks, gpus_, {kJob});
  const int before = mpi_.received(1);
  RunStep(ranks, gpus_, {kJob});
  EXPECT_EQ(mpi_.received(1), before + 2);  // a share, and a sum
  ranks.JoinAll();
  EXPECT_EQ(TakeSaid(), "by CUDA-aware MPI on all ranks, because rank 0 finds no NCCL");
}

// Shares that are not alike, and ranks without one. Sums: a third of each rank's is not exact.
TEST(CudaAwareRanksTest, ThreeAddUpEveryTypeAndSize) {
  if (TestGpu::IsReal()) GTEST_SKIP() << "of the simulation alone";
  Gpus gpus(3, Schedule::kLate, DeviceTransport::kMpi);
  LocalMessages mpi(3);
  const auto options_of = [](int) { return OptionsOf(DeviceTransport::kMpi); };
  Ranks ranks(3, options_of, CudaAwareRanks(&gpus, &mpi));
  std::vector<Job> jobs = {{"many", DataType::kFloat32, ReduceOp::kSum, 300003, 1}};
  for (DataType type : kAllTypes) {
    if (!IsFloating(type)) continue;
    for (size_t count : {0, 1, 5, 9, 16, 1001}) {
      const std::string name = std::string(Name(type)) + std::to_string(count);
      jobs.push_back({name, type, ReduceOp::kSum, count, 1});
    }
  }
  RunStep(ranks, gpus, jobs);
  EXPECT_GT(mpi.received(2), 30);
  ranks.JoinAll();
}

TEST_F(CudaAwareTest, IsNotTriedWhereStagingIsWanted) {
  ExpectStaged(DeviceTransport::kStaged, "TF_MPI_GPU_TRANSPORT=staged");
  EXPECT_EQ(mpi_.received(0), 0);
}

TEST_F(CudaAwareTest, AnMpiThatDoesNotSayItOnOneRankIsGivenNothing) {
  const Ranks::Decorate aware = CudaAwareRanks(&gpus_, &mpi_);
  Ranks ranks(2, All(DeviceTransport::kMpi), [&](std::unique_ptr<Transport> one, int rank) {
    return rank == 0 ? aware(std::move(one), rank) : std::move(one);
  });
  RunStep(ranks, gpus_, {kJob});
  ranks.JoinAll();
  EXPECT_EQ(
      TakeSaid(),
      "staged through the host, because the MPI of rank 1 does not report that it is CUDA-aware");
}

class CraysTransport : public Decorated {
 public:
  using Decorated::Decorated;
  std::string description() const override { return "MPI (CRAY MPICH 8.1.30)"; }
  GpuMessages* gpu_messages() override { return next_->gpu_messages(); }
};

TEST_F(CudaAwareTest, CraysIsUsedWhereItWasToldTo) {
  const Ranks::Decorate aware = CudaAwareRanks(&gpus_, &mpi_);
  for (const bool told : {false, true}) {
    const auto options_of = [&](int) {
      EngineOptions options = Options(DeviceTransport::kMpi);
      options.gpus.cray_gpus = told;
      return options;
    };
    Ranks ranks(2, options_of, [&](std::unique_ptr<Transport> one, int rank) {
      return std::make_unique<CraysTransport>(aware(std::move(one), rank));
    });
    RunStep(ranks, gpus_, {kJob});
    ranks.JoinAll();
    EXPECT_EQ(TakeSaid().find("by CUDA-aware MPI") != std::string::npos, told);
  }
}

TEST_F(CudaAwareTest, ALibraryThatDeliversSomethingElseIsFoundOut) {
  const std::string claims = "MPI reports that it is CUDA-aware, but its test failed: ";
  for (const Fault fault : {Fault::kNothing, Fault::kShort, Fault::kStale}) {
    for (const int rank : {0, 1}) {
      mpi_.SetFault(rank, fault);
      ExpectStaged(DeviceTransport::kMpi,
                   claims +
                       "local (threads of one process) reports support for GPU memory, but one of "
                       "its sums was wrong: element ");
      mpi_.SetFault(rank, Fault::kNone);
    }
  }
}

TEST_F(CudaAwareTest, ALibraryThatDeliversNothingEverIsFoundOut) {
  has_short_timeout_ = true;
  mpi_.SetFault(1, Fault::kNever);
  ExpectStaged(DeviceTransport::kMpi, "MPI reports that it is CUDA-aware, but its test failed: ");
  ExpectLeft(kSlots);  // it may still come
}

TEST_F(CudaAwareTest, WhatOneRankCannotDoIsStagedOnAll) {
  for (const Call call : {Call::kMakeCurrent, Call::kNewSum}) {
    gpus_[1].simulated()->Fail(call, 1);
    ExpectStaged(DeviceTransport::kMpi, "another rank could not prepare it");
    gpus_[0].simulated()->Fail(call, 1);
    ExpectStaged(DeviceTransport::kMpi, "(as the test wants it)");
  }
}

// Behind the test's own, and six of each of the trial's two chunks.
TEST_F(CudaAwareTest, ASumThatOneRankDoesNotGetIsStagedOnAll) {
  gpus_[1].simulated()->Fail(Call::kRecord, 14);
  ExpectStaged(DeviceTransport::kMpi, "another rank got a wrong sum, or none");
  gpus_[1].simulated()->ExpectLeft(kSlots);
}

TEST_F(CudaAwareTest, AnErrorOfMpiInTheTrialIsStagedOnAll) {
  has_short_timeout_ = true;
  mpi_.Fail(0, MpiCall::kStart, 1);
  ExpectStaged(DeviceTransport::kMpi, "MPI_Isend failed (as the test wants it)");
  mpi_.Fail(0, MpiCall::kTest, 1);
  ExpectStaged(DeviceTransport::kMpi, "MPI_Testall failed (as the test wants it)");
  ExpectLeft(2 * kSlots);  // on both ranks: what the other waited for did not come
}

TEST_F(CudaAwareTest, ErrorsOfMpiEndTheJob) {
  for (const int number : {1, 2}) {  // a share, a sum
    fail_ = [&] { mpi_.Fail(1, MpiCall::kStart, number); };
    ExpectEnd("MPI_Isend failed (as the test wants it)");
  }
  ExpectLeft(2 * kSlots);
}

TEST_F(CudaAwareTest, AnErrorOfMpiWhileMessagesTravelEndsTheJob) {
  fail_ = [&] { mpi_.Fail(1, MpiCall::kTest, 1); };
  ExpectEnd("MPI_Testall failed (as the test wants it)");
  ExpectLeft(kSlots);
}

TEST_F(CudaAwareTest, MessagesThatDoNotComeEndTheJob) {
  fail_ = [&] { mpi_.SetFault(1, Fault::kNever); };
  ExpectEnd("TF_MPI_STALL_TIMEOUT (at most 300 s): another rank has died or does not take part");
  ExpectLeft(kSlots);
}

TEST_F(CudaAwareTest, AGpuThatStandsStillEndsTheJob) {
  fail_ = [&] { gpus_[1].simulated()->Hold(gpus_.stream(1)); };
  after_ = [&] { gpus_[1].simulated()->LetGo(gpus_.stream(1)); };
  ExpectEnd("is busy with earlier work, or hangs (limit: TF_MPI_STALL_TIMEOUT, at most 300 s)");
  ExpectLeft(kSlots);
}

TEST_F(CudaAwareTest, AGpuThatFailsEndsTheJob) {
  fail_ = [&] { gpus_[1].simulated()->FailWork(3); };  // behind what the test itself writes
  ExpectEnd("CUDA_ERROR_LAUNCH_FAILED (as the test wants it)");
  gpus_[1].simulated()->TakeComplaints();
  ExpectLeft(kSlots);
}

TEST_F(CudaAwareTest, ARankThatIsLostEndsTheJob) {
  has_short_timeout_ = true;
  Ranks ranks(2, All(DeviceTransport::kMpi), CudaAwareRanks(&gpus_, &mpi_));
  RunStep(ranks, gpus_, {kJob});
  ranks.Destroy(1);
  EXPECT_NE(Average(0, ranks[0]), "");
  gpus_[0].simulated()->Finish(gpus_.stream(0));
  ExpectLeft(kSlots);
}

}  // namespace
}  // namespace tfmpi
