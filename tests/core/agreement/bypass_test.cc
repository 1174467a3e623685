// Engines that agree without a message: by votes (consensus_test.cc) for what the predictor
// expects.

#include <atomic>
#include <cstdio>
#include <random>

#include "gtest/gtest.h"
#include "tests/core/agreement/steps.h"
#include "tests/core/reduction/counting_rows.h"
#include "tests/core/support/job.h"
#include "tests/core/support/looks_late.h"
#include "tests/core/support/nodes.h"
#include "tests/core/support/ranks.h"

namespace tfmpi {
namespace {

using std::chrono::milliseconds;

struct Group {
  bool node;
  int ranks;
};

class BypassTest : public TimedTest, public ::testing::WithParamInterface<Group> {
 protected:
  std::unique_ptr<Ranks> MakeRanks(const Ranks::OptionsOf& options_of = nullptr) {
    const Group group = GetParam();
    const auto options = [&](int rank) { return options_of ? options_of(rank) : TestOptions(); };
    if (!group.node) return std::make_unique<Ranks>(group.ranks, options);
    nodes_ = std::make_unique<Nodes>(1, group.ranks);
    return std::make_unique<Ranks>(group.ranks, options, nodes_->Decorator());
  }

 private:
  std::unique_ptr<Nodes> nodes_;
};
INSTANTIATE_TEST_SUITE_P(Groups, BypassTest,
                         ::testing::Values(Group{false, 1}, Group{false, 3}, Group{true, 2},
                                           Group{true, 4}),
                         [](const auto& test) {
                           return (test.param.node ? "Node" : "Local") +
                                  std::to_string(test.param.ranks);
                         });

constexpr int kSteps = TFMPI_SANITIZED ? 60 : 400;

// The first step has new names; the next three show that the steps repeat.
constexpr uint64_t kPredicted = kSteps - 4;

// However long the machine delays a rank, none falls back to messages meanwhile.
EngineOptions PatientOptions(int) {
  EngineOptions options = TestOptions();
  options.vote_patience = std::chrono::hours(1);
  return options;
}

TEST_P(BypassTest, ARepeatedStepTakesNoMessage) {
  const std::unique_ptr<Ranks> ranks = MakeRanks(PatientOptions);
  ranks->Each([&](int rank, Engine& engine) {
    for (int step = 0; step < kSteps; ++step) {
      Average(engine, rank, ranks->size(),
              {{"a", DataType::kFloat32, ReduceOp::kAverage, 30, step},
               {"large", DataType::kFloat32, ReduceOp::kAverage, 70'000, step},
               {"half", DataType::kFloat16, ReduceOp::kSum, 9, step}});
    }
    EXPECT_EQ(engine.stats().predicted, kPredicted);
  });
  ranks->JoinAll();
}

// Some ranks have no rows in some steps.
int64_t RowsOf(int rank, int step) { return (rank * 7 + step * 3) % 5; }

void StepsWithRows(Engine& engine, int rank, int ranks) {
  for (int step = 0; step < kSteps; ++step) {
    const Job job = {"a", DataType::kFloat32, ReduceOp::kAverage, 30, step};
    std::vector<char> data = MakeInput(job, rank);
    CountingRows narrow(rank, 3), wide(rank, 70);
    std::vector<Request> requests;
    requests.push_back(MakeSparseAllgather("narrow", RowsOf(rank, step), 3, &narrow));
    requests.push_back(MakeRequest(job, data.data(), data.data()));
    requests.push_back(MakeSparseAllgather("wide", RowsOf(rank, step + 1), 70, &wide));
    std::vector<Ending> endings = SubmitAll(engine, std::move(requests));
    ASSERT_EQ(AwaitAll(endings), "");
    ASSERT_EQ(CheckOutput(job, AllRanks(ranks), data.data()), "");
    for (int r = 0; r < ranks; ++r) {
      ASSERT_EQ(narrow.seen_[r], std::vector<bool>(RowsOf(r, step), true));
      ASSERT_EQ(wide.seen_[r], std::vector<bool>(RowsOf(r, step + 1), true));
    }
  }
}

TEST_P(BypassTest, RowsThatDifferByRankAndStep) {
  const std::unique_ptr<Ranks> ranks = MakeRanks(PatientOptions);
  ranks->Each([&](int rank, Engine& engine) {
    StepsWithRows(engine, rank, ranks->size());
    EXPECT_EQ(engine.stats().predicted, kPredicted);
  });
  ranks->JoinAll();
}

using LateTest = TimedTest;

// Rank 0 waits for nobody where no rank has rows, and writes the number of its next ones before
// rank 1 has read the last one.
TEST_F(LateTest, ARankReadsTheRowsThatAllVotedFor) {
  Nodes nodes(1, 2);
  const auto place = nodes.Decorator();
  Ranks ranks(2, PatientOptions, [&](std::unique_ptr<Transport> transport, int rank) {
    return OneLooksLate(place(std::move(transport), rank), rank);
  });
  ranks.Each([&](int rank, Engine& engine) {
    for (int step = 0; step < 40; ++step) {
      if (rank == 0) std::this_thread::sleep_for(milliseconds(2));
      for (const int64_t rows : {0, 1 + step % 3}) {
        CountingRows gathered(rank, 3);
        std::vector<Ending> endings;
        endings.push_back(Submit(engine, MakeSparseAllgather("rows", rows, 3, &gathered)));
        ASSERT_EQ(AwaitAll(endings), "") << step;
        ASSERT_EQ(gathered.seen_[1 - rank], std::vector<bool>(rows, true));
      }
    }
    EXPECT_GT(engine.stats().predicted, 60u);
  });
  ranks.JoinAll();
}

// A random number that all ranks share decides what each rank submits and when: what follows what
// changes all the time, and some ranks are early or late.
TEST_P(BypassTest, StepsThatDeviate) {
  const std::unique_ptr<Ranks> ranks = MakeRanks();
  std::atomic<uint64_t> predicted{0};
  ranks->Each([&](int rank, Engine& engine) {
    std::mt19937 common(5), own(100 + rank);
    for (int step = 0; step < kSteps; ++step) {
      const auto job = [&](const char* name, size_t count) {
        return Job{name, DataType::kFloat32, ReduceOp::kAverage, count, step};
      };
      const unsigned kind = common() % 12;
      if (own() % 40 == 0) std::this_thread::sleep_for(milliseconds(own() % 30));
      if (kind == 0) {
        Average(engine, rank, ranks->size(), {job("a", 30), job("extra", 3)});
      } else if (kind == 1) {  // another shape under the same name
        Average(engine, rank, ranks->size(), {job("a", 31)});
      } else if (kind == 2) {
        Ending ending = Submit(engine, MakeBarrier("barrier"));
        ASSERT_TRUE(Await(ending).ok());
      } else if (kind == 3) {  // one by one, in an order of the rank's own
        std::thread other([&] { Average(engine, rank, ranks->size(), {job("b", 8)}); });
        Average(engine, rank, ranks->size(), {job("a", 30)});
        other.join();
      } else {
        Average(engine, rank, ranks->size(), {job("a", 30), job("b", 8)});
      }
    }
    predicted += engine.stats().predicted;
  });
  std::printf("%d of %d steps were predicted\n", static_cast<int>(predicted / ranks->size()),
              kSteps);
  // Under a sanitizer, on a busy machine, every vote may take longer than its patience.
  if (!TFMPI_SANITIZED) {
    EXPECT_GT(predicted, 0u);
  }
  ranks->JoinAll();
}

// What one thread repeats is voted for while requests of another thread become ready.
TEST_P(BypassTest, ThreadsThatRepeatTheirOwn) {
  const std::unique_ptr<Ranks> ranks = MakeRanks();
  std::atomic<uint64_t> predicted{0};
  ranks->Each([&](int rank, Engine& engine) {
    const auto repeat = [&](const char* name, int pause) {
      std::mt19937 own(rank + pause);
      for (int step = 0; step < kSteps; ++step) {
        if (pause != 0 && own() % pause == 0) std::this_thread::yield();
        Average(engine, rank, ranks->size(), {{name, DataType::kFloat32, ReduceOp::kSum, 4, step}});
      }
    };
    std::thread second([&] { repeat("b", 3); });
    std::thread third([&] { repeat("c", 7); });
    repeat("a", 0);
    second.join();
    third.join();
    predicted += engine.stats().predicted;
  });
  std::printf("%d of %d agreements were predicted\n", static_cast<int>(predicted / ranks->size()),
              3 * kSteps);
  ranks->JoinAll();
}

// Its statistics must not change what the others do: it announces, and the others end their votes.
TEST_P(BypassTest, ARankWithStatisticsVotesForNothing) {
  const int watched = GetParam().ranks - 1;
  const std::unique_ptr<Ranks> ranks = MakeRanks([watched](int rank) {
    EngineOptions options = TestOptions();
    options.stats = rank == watched;
    return options;
  });
  ranks->Each([&](int rank, Engine& engine) {
    for (int step = 0; step < kSteps; ++step) {
      Average(engine, rank, ranks->size(),
              {{"a", DataType::kFloat32, ReduceOp::kAverage, 9, step}});
    }
    EXPECT_EQ(engine.stats().predicted, 0u);
  });
  ranks->JoinAll();
}

// The other ranks submit both requests of a step together, and tell the coordinator: at the
// position of the second none of them votes, and rank 0 must not wait until its patience runs out.
TEST_P(BypassTest, NobodyWaitsForAVoteOfWhoHasToldBefore) {
  const std::unique_ptr<Ranks> ranks = MakeRanks([](int rank) {
    EngineOptions options = TestOptions();
    options.stats = rank != 0;  // such a rank does not vote
    return options;
  });
  constexpr int kPairs = 40;
  int slow = 0;
  ranks->Each([&](int rank, Engine& engine) {
    for (int step = 0; step < kPairs; ++step) {
      const Job first = {"first", DataType::kFloat32, ReduceOp::kAverage, 30, step};
      const Job second = {"second", DataType::kFloat16, ReduceOp::kAverage, 9, step};
      if (rank != 0) {
        Average(engine, rank, ranks->size(), {first, second});
        continue;
      }
      Average(engine, rank, ranks->size(), {first});
      const TimePoint begin = Clock::now();
      Average(engine, rank, ranks->size(), {second});
      slow += Clock::now() - begin > milliseconds(8);
    }
  });
  EXPECT_LT(slow, kPairs / 2);
  ranks->JoinAll();
}

// More posts than fit into the rings, while all ranks know what to do next without messages.
TEST_P(BypassTest, PostsWhileStepsArePredicted) {
  constexpr int kPosts = 2000;
  const std::string key(200, 'k');
  const std::unique_ptr<Ranks> ranks = MakeRanks();
  ranks->Each([&](int rank, Engine& engine) {
    std::thread poster;
    if (rank == 0) {
      poster = std::thread([&] {
        for (int post = 0; post < kPosts; ++post) engine.Post(key);
      });
    }
    for (int step = 0; step < kSteps; ++step) {
      Average(engine, rank, ranks->size(),
              {{"a", DataType::kFloat32, ReduceOp::kAverage, 9, step}});
    }
    if (poster.joinable()) poster.join();
  });
  ranks->JoinAll();
  for (int rank = 0; rank < ranks->size(); ++rank) {
    EXPECT_EQ((*ranks)[rank].published().Posted(key), kPosts) << rank;
  }
}

// One rank's shape differs where all ranks predict the same: a mismatch, as without votes.
TEST_P(BypassTest, AMismatchIsStillNamed) {
  const std::unique_ptr<Ranks> ranks = MakeRanks();
  if (ranks->size() == 1) return ranks->JoinAll();  // one rank agrees with itself
  for (int odd = 0; odd < 2; ++odd) {
    RepeatSteps(*ranks);
    ranks->Each([&](int rank, Engine& engine) {
      const Job job = {"a", DataType::kFloat32, ReduceOp::kAverage, rank == odd ? 4u : 3u, 0};
      std::vector<char> data = MakeInput(job, rank);
      Ending ending = Submit(engine, MakeRequest(job, data.data(), data.data()));
      const Status status = Await(ending);
      EXPECT_EQ(status.code(), Code::kInvalidArgument);
      EXPECT_NE(status.message().find("the ranks disagree on 'a'"), std::string::npos)
          << status.message();
    });
  }
  RepeatSteps(*ranks);
  ranks->JoinAll();
}

// Withdrawn while the others have not voted: the step can be repeated.
TEST_P(BypassTest, AVoteCanBeWithdrawn) {
  const std::unique_ptr<Ranks> ranks = MakeRanks();
  if (ranks->size() == 1) return ranks->JoinAll();  // it waits for nobody
  for (int round = 0; round < 3; ++round) {
    RepeatSteps(*ranks);
    const int rank = round % 2;
    const Job job = {"a", DataType::kFloat32, ReduceOp::kAverage, 3, 0};
    std::vector<char> data = MakeInput(job, rank);
    Ticket ticket = 0;
    Ending ending = Submit((*ranks)[rank], MakeRequest(job, data.data(), data.data()), &ticket);
    if (round == 2)
      std::this_thread::sleep_for(milliseconds(50));  // the coordinator knows the request
    (*ranks)[rank].Withdraw(ticket);
    EXPECT_EQ(Await(ending).code(), Code::kCancelled);
  }
  RepeatSteps(*ranks);
  ranks->JoinAll();
}

// A rank that has ended contributes zeros, though all predicted that it takes part.
TEST_P(BypassTest, ARankThatEnds) {
  const std::unique_ptr<Ranks> ranks = MakeRanks();
  if (ranks->size() == 1) return ranks->JoinAll();
  RepeatSteps(*ranks);
  const int last = ranks->size() - 1;
  ranks->Each([&](int rank, Engine& engine) {
    if (rank < last) {
      for (int step = 0; step < 5; ++step) {
        const Job job = {"a", DataType::kFloat32, ReduceOp::kAverage, 3, step};
        std::vector<char> data = MakeInput(job, rank);
        Ending ending = Submit(engine, MakeRequest(job, data.data(), data.data()));
        EXPECT_TRUE(Await(ending).ok());
        EXPECT_EQ(CheckOutput(job, AllRanks(last), data.data()), "");
      }
    }
    EXPECT_TRUE(engine.Join().ok());
  });
}

class SeveralNodesTest : public TimedTest {};

// These ranks share no word and no numbers.
TEST_F(SeveralNodesTest, NobodyVotes) {
  Nodes nodes(2, 2);
  Ranks ranks(
      4, [](int) { return TestOptions(); }, nodes.Decorator());
  ranks.Each([&](int rank, Engine& engine) {
    StepsWithRows(engine, rank, ranks.size());
    EXPECT_EQ(engine.stats().predicted, 0u);
  });
  ranks.JoinAll();
}

}  // namespace
}  // namespace tfmpi
