// Engines on several nodes, as threads: messages to rank 0 go through the first ranks of their
// nodes, and everything else is as usual.

#include <algorithm>
#include <cstdio>
#include <random>

#include "gtest/gtest.h"
#include "tests/core/model/trace.h"
#include "tests/core/support/job.h"
#include "tests/core/support/nodes.h"
#include "tests/core/support/ranks.h"

namespace tfmpi {
namespace {

using std::chrono::seconds;

class TreeTest : public TimedTest {};

// The maximum, over `steps` repeated steps, of what rank 0 sent and received.
struct Counts {
  uint64_t messages = 0;
  uint64_t unanimous = 0;
};

// Each rank submits all tensors of a step together. No rank is late: otherwise there are more
// messages.
Counts Train(Ranks& ranks, int tensors, int steps) {
  Counts counts;
  uint64_t before = 0;
  for (int step = 0; step < steps; ++step) {
    std::vector<std::vector<std::vector<char>>> data(ranks.size());
    std::vector<std::vector<Ending>> endings(ranks.size());
    const auto job_of = [step](int tensor) {
      return Job{"t" + std::to_string(tensor), DataType::kFloat32, ReduceOp::kSum,
                 static_cast<size_t>(5 + tensor), step};
    };
    for (int rank = 0; rank < ranks.size(); ++rank) {
      std::vector<Request> requests;
      data[rank].reserve(tensors);
      for (int tensor = 0; tensor < tensors; ++tensor) {
        data[rank].push_back(MakeInput(job_of(tensor), rank));
        requests.push_back(
            MakeRequest(job_of(tensor), data[rank].back().data(), data[rank].back().data()));
        auto promise = std::make_shared<std::promise<Status>>();
        endings[rank].push_back(promise->get_future());
        requests.back().done = [promise](const Status& status) { promise->set_value(status); };
      }
      ranks[rank].Submit(std::move(requests), nullptr);
    }
    for (int rank = 0; rank < ranks.size(); ++rank) {
      EXPECT_EQ(AwaitAll(endings[rank]), "");
      for (int tensor = 0; tensor < tensors; ++tensor) {
        EXPECT_EQ(CheckOutput(job_of(tensor), AllRanks(ranks.size()), data[rank][tensor].data()),
                  "");
      }
    }
    const EngineStats stats = ranks[0].stats();
    const uint64_t now = stats.messages_sent + stats.messages_received;
    if (step >= steps / 2) counts.messages = std::max(counts.messages, now - before);
    before = now;
    counts.unanimous = stats.unanimous;
  }
  return counts;
}

// A slow machine delays ranks; with less patience the ranks that wait for them are announced
// sooner.
EngineOptions Patient() {
  EngineOptions options = TestOptions();
  options.vote_patience = seconds(5);
  return options;
}

Counts TrainOn(int nodes, int per_node, bool tree, int steps = 12) {
  Nodes shape(nodes, per_node, NodeOptions(), tree);
  Ranks ranks(nodes * per_node, Patient(), shape.Decorator());
  const Counts counts = Train(ranks, 3, steps);
  ranks.JoinAll();
  std::printf("%d nodes of %d, %s: %llu messages of rank 0 in a step, %llu as one\n", nodes,
              per_node, tree ? "a tree" : "straight",
              static_cast<unsigned long long>(counts.messages),
              static_cast<unsigned long long>(counts.unanimous));
  return counts;
}

TEST_F(TreeTest, Rank0HearsItsChildrenOnce) {
  struct Form {
    int nodes, per_node;
    uint64_t straight, tree;
  };
  // To and from each other rank; in the tree, to and from 7 others of its node, and 7 or 8 nodes.
  std::vector<Form> forms = {{2, 1, 2, 2}, {2, 4, 14, 8}, {8, 8, 126, 28}, {64, 1, 126, 16}};
  if (TFMPI_SANITIZED) forms.pop_back();  // 64 threads take 5 s there
  for (const Form& form : forms) {
    EXPECT_EQ(TrainOn(form.nodes, form.per_node, false).messages, form.straight);
    const Counts counts = TrainOn(form.nodes, form.per_node, true);
    EXPECT_EQ(counts.messages, form.tree);
    // After it has followed itself twice, it is predicted.
    EXPECT_GE(counts.unanimous, form.per_node * form.nodes > 2 ? 6u : 0u);
  }
}

TEST_F(TreeTest, AStepThatRepeatsItselfOnOneNodeTakesNone) {
  EXPECT_EQ(TrainOn(1, 8, true).messages, 0u);
}

// Differing orders, withdrawals, differing shapes, an end before the others': as a coordinator
// would decide that had received the messages of each rank directly.
TEST_F(TreeTest, WhatIsDecidedIsWhatACoordinatorWouldDecide) {
  constexpr int kNodes = 5, kPerNode = 2, kRanks = kNodes * kPerNode;
  Nodes shape(kNodes, kPerNode);
  Trace trace(kRanks, /*tree=*/true);
  const auto options_of = [&](int rank) {
    EngineOptions options = TestOptions();
    options.trace = trace.Recorder(rank);
    return options;
  };
  {
    Ranks ranks(kRanks, options_of, shape.Decorator());
    ranks.Each([&](int rank, Engine& engine) {
      std::mt19937 common(7), own(100 + rank);
      const int steps = rank == 7 ? 30 : 60;
      for (int step = 0; step < steps; ++step) {
        const unsigned kind = common() % 8;
        const int differs = static_cast<int>(common() % kRanks);
        std::vector<std::string> names = {"a", "b", "c"};
        if (kind < 3) std::shuffle(names.begin(), names.end(), own);
        std::vector<std::vector<char>> data;
        std::vector<Ending> endings;
        data.reserve(4);
        const auto ask = [&](const std::string& name, size_t count) {
          const Job job = {name, DataType::kFloat32, ReduceOp::kSum, count, step};
          data.push_back(MakeInput(job, rank));
          Ticket ticket = 0;
          endings.push_back(
              Submit(engine, MakeRequest(job, data.back().data(), data.back().data()), &ticket));
          return ticket;
        };
        for (const std::string& name : names) ask(name, 10);
        if (kind == 4) ask("d", rank == differs ? 5 : 6);
        Ticket taken = 0;
        if (kind == 5) taken = ask("e", 4);
        if (kind == 5 && rank == differs) engine.Withdraw(taken);
        Status last;
        for (Ending& ending : endings) last = Await(ending);
        if (last.code() == Code::kCancelled) {
          endings.clear();
          ask("e", 4);
          EXPECT_TRUE(Await(endings.front()).ok());
        }
      }
      EXPECT_TRUE(engine.Join().ok());
    });
  }
  EXPECT_EQ(trace.Check(), "");
  EXPECT_EQ(trace.Replay(), "");
}

// An error has answered a rank before it announced the name. Its first announcement is that one,
// though all others have announced the name again: rank 0 must not take it for a step that all
// ranks announce.
TEST_F(TreeTest, WhatAnErrorHasAnsweredCountsForNothing) {
  constexpr int kRanks = 6, kLate = 5;
  EngineOptions options = TestOptions();
  options.vote_patience = std::chrono::milliseconds(700);
  Nodes shape(3, 2);
  Ranks ranks(kRanks, options, shape.Decorator());
  Train(ranks, 1, 6);
  ASSERT_GT(ranks[0].stats().unanimous, 0u);
  std::vector<std::vector<char>> data(kRanks + 1);
  const auto ask = [&](int rank, size_t count, int step, std::vector<char>* memory) {
    const Job job = {"t0", DataType::kFloat32, ReduceOp::kSum, count, step};
    *memory = MakeInput(job, rank);
    return Submit(ranks[rank], MakeRequest(job, memory->data(), memory->data()));
  };
  std::vector<Ending> endings(kRanks);
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank != kLate) endings[rank] = ask(rank, rank == 2 ? 6 : 5, 100, &data[rank]);
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank == kLate) continue;
    EXPECT_EQ(Await(endings[rank]).code(), Code::kInvalidArgument);
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank != kLate) endings[rank] = ask(rank, 5, 101, &data[rank]);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  Ending late = ask(kLate, 5, 100, &data[kRanks]);
  EXPECT_EQ(Await(late).code(), Code::kInvalidArgument);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  endings[kLate] = ask(kLate, 5, 101, &data[kLate]);
  EXPECT_EQ(AwaitAll(endings), "");
  const Job job = {"t0", DataType::kFloat32, ReduceOp::kSum, 5, 101};
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(CheckOutput(job, AllRanks(kRanks), data[rank].data()), "");
  }
}

// A rank that forwards for others ends with an error: all learn of it, those below it and those
// above.
TEST_F(TreeTest, WhoStopsTellsThoseBelowIt) {
  Nodes shape(4, 2);
  Ranks ranks(8, TestOptions(), shape.Decorator());
  std::vector<Ending> endings;
  for (int rank = 0; rank < 8; ++rank) {
    if (rank != 2) endings.push_back(Submit(ranks[rank], MakeBarrier("b")));
  }
  ranks[2].Leave("a bug", seconds(10));
  for (Ending& ending : endings) {
    const Status status = Await(ending);
    EXPECT_EQ(status.code(), Code::kUnavailable);
    EXPECT_NE(status.message().find("rank 2/8 has stopped: a bug"), std::string::npos)
        << status.message();
  }
}

// Rank 0 is busy, and the rank that forwards its messages does not wait for it.
TEST_F(TreeTest, WhoCannotWaitForRank0TellsThoseBelowIt) {
  Nodes shape(4, 2);
  Ranks ranks(8, TestOptions(), shape.Decorator());
  std::vector<Ending> first;
  for (int rank = 1; rank < 8; ++rank) first.push_back(Submit(ranks[rank], MakeBarrier("first")));
  Request request = MakeBarrier("first");
  request.done = [](const Status&) { std::this_thread::sleep_for(std::chrono::milliseconds(900)); };
  ranks[0].Submit(std::move(request));
  EXPECT_EQ(AwaitAll(first), "");
  Ending third = Submit(ranks[3], MakeBarrier("b"));
  ranks[2].Leave("a bug", std::chrono::milliseconds(200));
  const Status status = Await(third);
  EXPECT_NE(status.message().find("rank 2/8 has stopped: a bug"), std::string::npos)
      << status.message();
}

// The rank in between stands still.
TEST_F(TreeTest, ARankThatIsNotAnsweredNamesWhoAnswersIt) {
  EngineOptions options = TestOptions();
  options.coordinator.stall_timeout = std::chrono::milliseconds(100);
  std::promise<void> over;
  Nodes shape(4, 2);
  Ranks ranks(8, options, shape.Decorator());
  std::vector<Ending> first;
  for (int rank = 0; rank < 8; ++rank) {
    if (rank != 2) first.push_back(Submit(ranks[rank], MakeBarrier("first")));
  }
  Request request = MakeBarrier("first");
  request.done = [&](const Status&) { over.get_future().wait(); };
  ranks[2].Submit(std::move(request));
  EXPECT_EQ(AwaitAll(first), "");
  Ending third = Submit(ranks[3], MakeBarrier("b"));
  const Status status = Await(third);
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
  EXPECT_NE(status.message().find("rank 3/8: rank 0 has not answered about 'b' for longer than "
                                  "TF_MPI_STALL_TIMEOUT; its process is stopped, hangs or has "
                                  "died, or that of rank 2, through which it answers"),
            std::string::npos)
      << status.message();
  over.set_value();
}

// Rank 0 names a missing rank by its own number, though another rank forwards for it.
TEST_F(TreeTest, AStallNamesTheRanksThatAreMissing) {
  EngineOptions options = TestOptions();
  options.coordinator.stall_timeout = std::chrono::milliseconds(400);
  Nodes shape(4, 2);
  Ranks ranks(8, options, shape.Decorator());
  std::vector<Ending> endings;
  for (int rank = 0; rank < 8; ++rank) {
    if (rank != 2 && rank != 5) endings.push_back(Submit(ranks[rank], MakeBarrier("b")));
  }
  for (Ending& ending : endings) {
    const Status status = Await(ending);
    EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
    EXPECT_NE(status.message().find("for ranks 2 and 5 ("), std::string::npos) << status.message();
  }
}

// Ranks 1 and 6 wait for each other: rank 0 detects it from what their parents forward.
TEST_F(TreeTest, ADeadlockIsFound) {
  EngineOptions options = TestOptions();
  options.coordinator.deadlock_timeout = std::chrono::milliseconds(500);
  Nodes shape(4, 2);
  Ranks ranks(8, options, shape.Decorator());
  std::vector<Ending> endings;
  for (int rank = 0; rank < 8; ++rank) {
    Request request = MakeBarrier(rank == 6 ? "after" : "before");
    request.purpose = Purpose::kScript;
    request.blocks = true;
    endings.push_back(Submit(ranks[rank], std::move(request)));
  }
  for (Ending& ending : endings) {
    const Status status = Await(ending);
    EXPECT_NE(status.message().find("the ranks wait for one another"), std::string::npos)
        << status.message();
  }
}

// The announcements of many names do not fit into the rings of other nodes either.
TEST_F(TreeTest, AFirstStepOfManyNames) {
  Nodes shape(3, 2);
  Ranks ranks(6, TestOptions(), shape.Decorator());
  for (int step = 0; step < 2; ++step) {
    std::vector<std::vector<char>> data;
    std::vector<Ending> endings;
    data.reserve(6 * 300);
    for (int i = 0; i < 300; ++i) {
      for (int rank = 0; rank < 6; ++rank) {
        const Job job = {std::string(200, 'n') + std::to_string(i), DataType::kFloat32,
                         ReduceOp::kAverage, 3, i};
        data.push_back(MakeInput(job, rank));
        endings.push_back(
            Submit(ranks[rank], MakeRequest(job, data.back().data(), data.back().data())));
      }
    }
    EXPECT_EQ(AwaitAll(endings), "");
  }
  ranks.JoinAll();
}

}  // namespace
}  // namespace tfmpi
