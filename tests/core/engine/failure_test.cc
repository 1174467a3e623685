// Any failure on one rank ends every other rank's requests, soon and with a reason.

#include <atomic>

#include "gtest/gtest.h"
#include "tensorflow_patches/core/transport/membership.h"
#include "tests/core/support/decorated.h"
#include "tests/core/support/job.h"
#include "tests/core/support/ranks.h"

namespace tfmpi {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Pending requests of all ranks but one, with names that that rank never submits.
class Waiting {
 public:
  Waiting(Ranks& ranks, int without) : values_(ranks.size() * 3) {
    for (int rank = 0; rank < ranks.size(); ++rank) {
      for (int i = 0; i < 3 && rank != without; ++i) {
        float* value = &values_[rank * 3 + i];
        const Job job = {"w" + std::to_string(i / 2), DataType::kFloat32, ReduceOp::kAverage, 1, 0};
        endings_.push_back(Submit(ranks[rank], MakeRequest(job, value, value)));
      }
    }
  }

  void ExpectEnd(Code code, const std::vector<std::string>& parts) {
    const TimePoint start = Clock::now();
    for (Ending& ending : endings_) {
      const Status status = Await(ending);
      EXPECT_EQ(status.code(), code) << status.message();
      for (const std::string& part : parts)
        EXPECT_TRUE(Contains(status.message(), part)) << status.message();
    }
    EXPECT_LT(Clock::now() - start, kPromptly);
  }

 private:
  std::vector<float> values_;
  std::vector<Ending> endings_;
};

void ExpectLaterRequestsFail(Ranks& ranks, int without, const std::string& reason) {
  for (int rank = 0; rank < ranks.size(); ++rank) {
    if (rank == without) continue;
    const TimePoint start = Clock::now();
    Ending ending = Submit(ranks[rank], MakeBarrier("later"));
    const Status status = Await(ending);
    EXPECT_EQ(status.code(), Code::kUnavailable);
    EXPECT_TRUE(Contains(status.message(), reason)) << status.message();
    EXPECT_LT(Clock::now() - start, kPromptly);
  }
}

class LeaveTest : public TimedTest, public ::testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(Rank, LeaveTest, ::testing::Range(0, 4));

TEST_P(LeaveTest, EveryOtherRankFailsWithTheReason) {
  Ranks ranks(4);
  Waiting waiting(ranks, GetParam());
  std::this_thread::sleep_for(milliseconds(20));
  const TimePoint start = Clock::now();
  ranks[GetParam()].Leave("ValueError: batch 7 is empty", seconds(5));
  EXPECT_LT(Clock::now() - start, kPromptly) << "the grace is an upper bound";
  waiting.ExpectEnd(Code::kUnavailable,
                    {"rank " + std::to_string(GetParam()) + "/4", "ValueError: batch 7 is empty"});
  ExpectLaterRequestsFail(ranks, GetParam(), "ValueError: batch 7 is empty");
}

TEST_P(LeaveTest, WhatTheLeavingRankItselfHasPendingEndsToo) {
  Ranks ranks(4);
  float value = 1;
  const Job job = {"own", DataType::kFloat32, ReduceOp::kAverage, 1, 0};
  Ending own = Submit(ranks[GetParam()], MakeRequest(job, &value, &value));
  ranks[GetParam()].Leave("the script failed", seconds(5));
  ASSERT_EQ(own.wait_for(seconds(0)), std::future_status::ready) << "before Leave returns";
  EXPECT_FALSE(own.get().ok());
  Ending late = Submit(ranks[GetParam()], MakeBarrier("late"));
  ASSERT_EQ(late.wait_for(seconds(0)), std::future_status::ready);
  const Status rejected = late.get();
  EXPECT_EQ(rejected.code(), Code::kFailedPrecondition);
  EXPECT_EQ(rejected.message(), "'late' was submitted after the engine had stopped");
}

TEST_P(LeaveTest, AnEngineThatIsDestroyedLeaves) {
  Ranks ranks(4);
  Waiting waiting(ranks, GetParam());
  std::this_thread::sleep_for(milliseconds(20));
  ranks.Destroy(GetParam());
  waiting.ExpectEnd(Code::kUnavailable,
                    {"rank " + std::to_string(GetParam()) + "/4", "the engine was destroyed"});
}

TEST_P(LeaveTest, ARankThatJoinedHearsOfIt) {
  Ranks ranks(4);
  const int joining = (GetParam() + 1) % 4;
  Status joined;
  std::thread thread([&] { joined = ranks[joining].Join(); });
  std::this_thread::sleep_for(milliseconds(30));
  ranks[GetParam()].Leave("no more disk", seconds(5));
  thread.join();
  EXPECT_EQ(joined.code(), Code::kUnavailable);
  EXPECT_TRUE(Contains(joined.message(), "no more disk")) << joined.message();
}

using FailureTest = TimedTest;

TEST_F(FailureTest, ADeadPeerFailsAllPromptly) {
  Ranks ranks(4);
  Waiting waiting(ranks, 3);
  std::this_thread::sleep_for(milliseconds(20));
  ranks.group().Break("rank 3 has died");
  waiting.ExpectEnd(Code::kUnavailable, {"rank 3 has died"});
  ExpectLaterRequestsFail(ranks, -1, "rank 3 has died");
  ranks.Each([](int, Engine& engine) { EXPECT_EQ(engine.Join().code(), Code::kUnavailable); });
}

TEST_F(FailureTest, AnEndWithoutTheRecordsIsAnError) {
  EngineOptions options = TestOptions();
  options.at_end = [](Transport*) { return false; };
  Ranks ranks(2, options);
  ranks.Each([](int, Engine& engine) {
    const Status joined = engine.Join();
    EXPECT_EQ(joined.code(), Code::kUnavailable);
    EXPECT_EQ(joined.message(), "the ranks could not gather their traces and statistics");
  });
}

TEST_F(FailureTest, ADeadPeerIsNoticedWhenIdleToo) {
  Ranks ranks(2);
  ranks.group().Break("rank 1 has died");
  std::this_thread::sleep_for(milliseconds(100));
  ExpectLaterRequestsFail(ranks, -1, "rank 1 has died");
}

TEST_F(FailureTest, APeerDiesInTheMidstOfTraining) {
  for (int trial = 0; trial < 10; ++trial) {
    Ranks ranks(3);
    std::atomic<int> steps{0};
    std::thread killer([&] {
      while (steps < 30 * (trial + 1)) std::this_thread::yield();
      ranks.group().Break("rank 2 has died");
    });
    ranks.Each([&](int rank, Engine& engine) {
      Status status;
      while (status.ok()) {
        const Job job = {"w", DataType::kFloat32, ReduceOp::kAverage, 3000, steps};
        std::vector<char> data = MakeInput(job, rank);
        Ending ending = Submit(engine, MakeRequest(job, data.data(), data.data()));
        status = Await(ending);
        ++steps;
      }
      EXPECT_EQ(status.code(), Code::kUnavailable);
      EXPECT_TRUE(Contains(status.message(), "rank 2 has died")) << status.message();
    });
    killer.join();
  }
}

TEST_F(FailureTest, ARankThatNeverSubmitsIsNamed) {
  EngineOptions options = TestOptions();
  options.coordinator.stall_warning = milliseconds(100);
  options.coordinator.stall_timeout = milliseconds(400);
  std::mutex mutex;
  std::vector<std::string> lines;
  options.log = [&](const std::string& line) {
    std::lock_guard<std::mutex> lock(mutex);
    lines.push_back(line);
  };
  Ranks ranks(3, options);
  float values[3] = {};
  const Job job = {"w", DataType::kFloat32, ReduceOp::kAverage, 1, 0};
  Ending zero = Submit(ranks[0], MakeRequest(job, &values[0], &values[0]));
  Ending two = Submit(ranks[2], MakeRequest(job, &values[2], &values[2]));
  for (Ending* ending : {&zero, &two}) {
    const Status status = Await(*ending);
    EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
    EXPECT_TRUE(Contains(status.message(), "'w'")) << status.message();
    EXPECT_TRUE(Contains(status.message(), "for rank 1 ")) << status.message();
  }
  Ending late = Submit(ranks[1], MakeRequest(job, &values[1], &values[1]));
  EXPECT_EQ(Await(late).code(), Code::kDeadlineExceeded) << "answered already";
  ranks.JoinAll();  // a stall is an error of the request, not the end of the group
  ASSERT_FALSE(lines.empty());
  EXPECT_TRUE(Contains(lines[0], "for rank 1 ")) << lines[0];
}

// The communication thread of rank 1 stands still, as when its process is stopped.
TEST_F(FailureTest, ARankThatHasJoinedNoticesOneThatIsSilent) {
  EngineOptions options = TestOptions();
  options.coordinator.stall_timeout = milliseconds(100);
  std::promise<void> over;
  Ranks ranks(2, options);
  Request request = MakeBarrier("b");
  request.done = [&](const Status&) { over.get_future().wait(); };
  Ending ending = Submit(ranks[0], MakeBarrier("b"));
  ranks[1].Submit(std::move(request));
  EXPECT_TRUE(Await(ending).ok());
  const Status joined = ranks[0].Join();
  EXPECT_EQ(joined.code(), Code::kDeadlineExceeded);
  EXPECT_TRUE(Contains(joined.message(),
                       "rank 0/2: rank 1 has been silent for longer than TF_MPI_STALL_TIMEOUT "
                       "while a rank waits for the others' scripts to end; its process is stopped "
                       "or dead"))
      << joined.message();
  over.set_value();
}

// A transport whose reduction hangs on one rank, as when its process is stopped after the
// agreement.
class HangingTransport : public Decorated {
 public:
  HangingTransport(std::unique_ptr<Transport> next, std::atomic<bool>* hang)
      : Decorated(std::move(next)), hang_(hang) {}

  Status Allreduce(const void* in, void* out, const Reduction& reduction,
                   TimePoint deadline) override {
    while (*hang_) std::this_thread::sleep_for(milliseconds(1));
    return next_->Allreduce(in, out, reduction, deadline);
  }

 private:
  std::atomic<bool>* const hang_;
};

TEST_F(FailureTest, ACollectiveThatDoesNotEndHasADeadline) {
  std::atomic<bool> hang{true};
  EngineOptions options = TestOptions();
  options.collective_timeout = milliseconds(200);
  Ranks ranks(3, options,
              [&](std::unique_ptr<Transport> real, int rank) -> std::unique_ptr<Transport> {
                if (rank != 1) return real;
                return std::make_unique<HangingTransport>(std::move(real), &hang);
              });
  float values[3] = {};
  std::vector<Ending> endings;
  const Job job = {"w", DataType::kFloat32, ReduceOp::kAverage, 1, 0};
  for (int rank = 0; rank < 3; ++rank) {
    endings.push_back(Submit(ranks[rank], MakeRequest(job, &values[rank], &values[rank])));
  }
  int deadlines = 0;
  for (int rank : {0, 2}) {
    const Status status = Await(endings[rank]);
    deadlines += status.code() == Code::kDeadlineExceeded;
    EXPECT_TRUE(Contains(status.message(), "rank " + std::to_string(rank) + "/3: allreduce 'w'"))
        << status.message();
  }
  EXPECT_GE(deadlines, 1) << "the first to give up; the other may hear of it";
  hang = false;
  EXPECT_FALSE(Await(endings[1]).ok());
}

// A group that may continue after deaths, but whose survivors find no agreement.
class Disagreeing : public Decorated, public Membership {
 public:
  Disagreeing(std::unique_ptr<Transport> next, bool died)
      : Decorated(std::move(next)), died_(died) {}

  Membership* membership() override { return this; }
  bool HasFailedRank() override { return died_; }
  Status Agree(bool, TimePoint, bool*) override {
    return Status(Code::kDeadlineExceeded, "no agreement");
  }
  Status Regroup(std::unique_ptr<Transport>*) override { return Status(); }

 private:
  const bool died_;
};

std::unique_ptr<Ranks> OneRank(bool died) {
  EngineOptions options = TestOptions();
  options.shrink_on_fault = true;
  return std::make_unique<Ranks>(1, options, [died](std::unique_ptr<Transport> next, int) {
    return std::make_unique<Disagreeing>(std::move(next), died);
  });
}

TEST_F(FailureTest, SurvivorsThatCannotRegroupEnd) {
  const std::unique_ptr<Ranks> ranks = OneRank(/*died=*/true);
  while ((*ranks)[0].failure().ok()) std::this_thread::yield();
  Ending ending = Submit((*ranks)[0], MakeBarrier("b"));
  const Status status = Await(ending);
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(status.message(),
            "a rank has died, and the others could not continue without it: no agreement");
}

TEST_F(FailureTest, AGroupThatContinuesAfterDeathsTakesNoGpuMemory) {
  const std::unique_ptr<Ranks> ranks = OneRank(/*died=*/false);
  Request request = MakeBarrier("b");
  request.signature.on_gpu = true;
  Ending ending = Submit((*ranks)[0], request);
  const Status status = Await(ending);
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_EQ(status.message(),
            "'b' is on a GPU, and TF_MPI_FAULT=shrink supports host memory only; set "
            "TF_MPI_FAULT=abort");
}

}  // namespace
}  // namespace tfmpi
