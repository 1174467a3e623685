// Agreements without a message: the vote, what is expected, and engines that use both.

#include "tensorflow_patches/core/forecast.h"

#include <atomic>
#include <cstdio>
#include <random>

#include "gtest/gtest.h"
#include "tensorflow_patches/core/ballot.h"
#include "tests/core/decorated.h"
#include "tests/core/job.h"
#include "tests/core/nodes.h"
#include "tests/core/ranks.h"

namespace tfmpi {
namespace {

using std::chrono::milliseconds;

class BallotTest : public TimedTest {};

TEST_F(BallotTest, IsCarriedByAllAndRejectedByOne) {
  std::atomic<uint64_t> word{0};
  Ballot ballot(&word, 3);
  EXPECT_EQ(ballot.Look(0), Outcome::kOpen);
  EXPECT_EQ(ballot.Vote(0), Outcome::kOpen);
  EXPECT_EQ(ballot.Vote(0), Outcome::kOpen);
  EXPECT_EQ(ballot.Vote(0), Outcome::kCarried);
  bool disappointed = true;
  EXPECT_EQ(ballot.Reject(0, &disappointed), Outcome::kCarried) << "too late";
  EXPECT_FALSE(disappointed);
  EXPECT_EQ(ballot.Vote(1), Outcome::kOpen);
  EXPECT_EQ(ballot.Reject(1, &disappointed), Outcome::kRejected);
  EXPECT_TRUE(disappointed) << "who has voted waits for it";
  EXPECT_EQ(ballot.Reject(1, &disappointed), Outcome::kRejected);
  EXPECT_FALSE(disappointed) << "it has been told";
  EXPECT_EQ(ballot.Vote(1), Outcome::kRejected);
  EXPECT_EQ(ballot.Vote(2), Outcome::kOpen);
  EXPECT_EQ(ballot.Reject(3, &disappointed), Outcome::kRejected);
  EXPECT_FALSE(disappointed) << "nobody has voted";
  EXPECT_EQ(ballot.Look(1), Outcome::kRejected) << "others have passed it without this rank";
  EXPECT_EQ(Ballot(nullptr, 3).Vote(0), Outcome::kRejected);
}

// Every rank, at every position, learns the same; what is carried has everyone's vote.
TEST_F(BallotTest, IsDecidedAlikeForAll) {
  constexpr int kRanks = 4, kPositions = TFMPI_SANITIZED ? 2000 : 20000;
  std::atomic<uint64_t> word{0};
  std::vector<std::atomic<int>> votes(kPositions), carried(kPositions), rejected(kPositions);
  const auto rank = [&](int rank) {
    std::mt19937 random(rank);
    Ballot ballot(&word, kRanks);
    bool disappointed = false;
    for (int p = 0; p < kPositions; ++p) {
      Outcome outcome = Outcome::kOpen;
      if (random() % 16 == 0) {
        outcome = ballot.Reject(p, &disappointed);
      } else {
        ++votes[p];
        outcome = ballot.Vote(p);
        const bool impatient = random() % 16 == 0;
        while (outcome == Outcome::kOpen) {
          outcome = impatient ? ballot.Reject(p, &disappointed) : ballot.Look(p);
          std::this_thread::yield();
        }
      }
      ++(outcome == Outcome::kCarried ? carried : rejected)[p];
      // What is carried is done by all before anyone goes on.
      while (outcome == Outcome::kCarried && carried[p] < kRanks) {
        ASSERT_EQ(rejected[p], 0);
        std::this_thread::yield();
      }
    }
  };
  std::vector<std::thread> threads;
  for (int r = 0; r < kRanks; ++r) threads.emplace_back(rank, r);
  for (std::thread& thread : threads) thread.join();
  int times = 0;
  for (int p = 0; p < kPositions; ++p) {
    EXPECT_TRUE(carried[p] == 0 || carried[p] == kRanks) << p;
    EXPECT_TRUE(carried[p] == 0 || votes[p] == kRanks) << p;
    times += carried[p] != 0;
  }
  std::printf("%d of %d carried\n", times, kPositions);
  EXPECT_GT(times, kPositions / 20);
  EXPECT_LT(times, kPositions);
}

class ForecastTest : public TimedTest {
 protected:
  ForecastTest() {
    for (NameId i = 0; i < 4; ++i) Number(i, {5});
  }

  Verdict Of(const std::vector<NameId>& ids, int contributors = 2) const {
    Verdict verdict;
    for (NameId id : ids) {
      verdict.responses.push_back({{ResponseItem()}, contributors});
      verdict.responses.back().items[0].id = id;
    }
    return verdict;
  }
  void Number(NameId id, const Shape& shape, OpKind kind = OpKind::kAllreduce) {
    NamedSignature named;
    named.name = "w" + std::to_string(id);
    named.signature.kind = kind;
    named.signature.shape = shape;
    table_.Number(id, named);
  }
  void Came(const Verdict& verdict) { forecast_.Came(verdict, table_); }

  NameTable table_;
  Forecast forecast_{2};
};

using Names = std::vector<NameId>;

TEST_F(ForecastTest, ExpectsWhatFollowedTwice) {
  for (int step = 0; step < 2; ++step) {
    Came(Of({2, 0}));
    Came(Of({1}));
    EXPECT_EQ(forecast_.names(), Names());
  }
  Came(Of({2, 0}));
  EXPECT_EQ(forecast_.names(), Names({1})) << "1 came twice after 2 and 0";
  forecast_.CameTrue();
  EXPECT_EQ(forecast_.names(), Names({0, 2}));
  EXPECT_EQ(forecast_.verdict().responses[0].items[0].id, 2u) << "in its order";
  Came(Of({3}));
  EXPECT_EQ(forecast_.names(), Names());
  Came(Of({2, 0}));
  EXPECT_EQ(forecast_.names(), Names({1})) << "what it knew before";
}

TEST_F(ForecastTest, ExpectsOnlyAveragesOfAll) {
  const auto expects = [&](const Verdict& verdict) {
    for (int i = 0; i < 4; ++i) Came(verdict);
    return !forecast_.names().empty();
  };
  EXPECT_TRUE(expects(Of({1})));
  EXPECT_FALSE(expects(Of({1}, /*contributors=*/1))) << "a rank has ended";
  Number(2, {5}, OpKind::kBroadcast);
  EXPECT_FALSE(expects(Of({2})));
  Number(3, {0});
  EXPECT_FALSE(expects(Of({3}))) << "no rank waits for another in it";
  Verdict fresh = Of({0});
  fresh.responses[0].items[0].is_new = true;
  EXPECT_FALSE(expects(fresh));
}

TEST_F(ForecastTest, FitsWhatIsExactlyExpected) {
  for (int i = 0; i < 4; ++i) Came(Of({2, 0}));
  Announcement announcement;
  announcement.ready = {2, 0};
  EXPECT_TRUE(forecast_.Fits(announcement));
  announcement.ready = {0, 2, 1};
  EXPECT_FALSE(forecast_.Fits(announcement));
  announcement.ready = {0};
  EXPECT_FALSE(forecast_.Fits(announcement));
  announcement.ready = {0, 2};
  announcement.withdrawn = {"w0"};
  EXPECT_FALSE(forecast_.Fits(announcement));
}

TEST_F(ForecastTest, ForgetsAScriptThatNeverRepeatsItself) {
  for (NameId id = 4; id < 500; ++id) {
    Number(id, {5});
    Came(Of({id}));
  }
  for (int i = 0; i < 4; ++i) Came(Of({1}));
  EXPECT_EQ(forecast_.names(), Names({1}));
}

struct Group {
  bool node;
  int ranks;
};

class ForecastingTest : public TimedTest, public ::testing::WithParamInterface<Group> {
 protected:
  std::unique_ptr<Ranks> MakeRanks() {
    const Group group = GetParam();
    if (!group.node) return std::make_unique<Ranks>(group.ranks);
    nodes_ = std::make_unique<Nodes>(1, group.ranks);
    return std::make_unique<Ranks>(group.ranks, TestOptions(), nodes_->Decorator());
  }

 private:
  std::unique_ptr<Nodes> nodes_;
};
INSTANTIATE_TEST_SUITE_P(Groups, ForecastingTest,
                         ::testing::Values(Group{false, 1}, Group{false, 3}, Group{true, 2},
                                           Group{true, 4}),
                         [](const auto& test) {
                           return (test.param.node ? "Node" : "Local") +
                                  std::to_string(test.param.ranks);
                         });

constexpr int kSteps = TFMPI_SANITIZED ? 60 : 400;

// Submits at once, as a step does, and checks what comes out.
void Average(Engine& engine, int rank, int ranks, const std::vector<Job>& jobs) {
  std::vector<std::vector<char>> data;
  std::vector<Request> requests;
  std::vector<Ending> endings;
  for (const Job& job : jobs) {
    data.push_back(MakeInput(job, rank));
    auto promise = std::make_shared<std::promise<Status>>();
    endings.push_back(promise->get_future());
    requests.push_back(MakeRequest(job, data.back().data(), data.back().data()));
    requests.back().done = [promise](const Status& status) { promise->set_value(status); };
  }
  std::vector<Ticket> tickets;
  engine.Submit(std::move(requests), &tickets);
  ASSERT_EQ(AwaitAll(endings), "");
  for (size_t i = 0; i < jobs.size(); ++i) {
    ASSERT_EQ(CheckOutput(jobs[i], AllRanks(ranks), data[i].data()), "") << jobs[i].name;
  }
}

TEST_P(ForecastingTest, ARepeatedStepTakesNoMessage) {
  const std::unique_ptr<Ranks> ranks = MakeRanks();
  ranks->Each([&](int rank, Engine& engine) {
    for (int step = 0; step < kSteps; ++step) {
      Average(engine, rank, ranks->size(),
              {{"a", DataType::kFloat32, ReduceOp::kAverage, 30, step},
               {"large", DataType::kFloat32, ReduceOp::kAverage, 70'000, step},
               {"half", DataType::kFloat16, ReduceOp::kSum, 9, step}});
    }
    // All of one step are handed in at once, so that only a rank that the machine keeps from
    // running for longer than a vote's patience makes it go another way; sanitizers are as slow.
    EXPECT_GT(engine.stats().foreseen, static_cast<uint64_t>(TFMPI_SANITIZED ? 0 : kSteps / 4));
  });
  ranks->JoinAll();
}

// What each rank submits when, by a random number that all share: what follows what changes all
// the time, and some ranks are early or late.
TEST_P(ForecastingTest, StepsThatDeviate) {
  const std::unique_ptr<Ranks> ranks = MakeRanks();
  std::atomic<uint64_t> foreseen{0};
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
      } else if (kind == 3) {  // in parts, in an order of the rank's own
        std::thread other([&] { Average(engine, rank, ranks->size(), {job("b", 8)}); });
        Average(engine, rank, ranks->size(), {job("a", 30)});
        other.join();
      } else {
        Average(engine, rank, ranks->size(), {job("a", 30), job("b", 8)});
      }
    }
    foreseen += engine.stats().foreseen;
  });
  std::printf("%d of %d steps were foreseen\n", static_cast<int>(foreseen / ranks->size()), kSteps);
  EXPECT_GT(foreseen, 0u);
  ranks->JoinAll();
}

// What one thread repeats is voted for while what another has announced becomes ready.
TEST_P(ForecastingTest, ThreadsThatRepeatTheirOwn) {
  const std::unique_ptr<Ranks> ranks = MakeRanks();
  std::atomic<uint64_t> foreseen{0};
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
    foreseen += engine.stats().foreseen;
  });
  std::printf("%d of %d agreements were foreseen\n", static_cast<int>(foreseen / ranks->size()),
              3 * kSteps);
  ranks->JoinAll();
}

constexpr int kRepeats = 6;

void Repeat(Ranks& ranks, int times = kRepeats) {
  ranks.Each([&](int rank, Engine& engine) {
    for (int step = 0; step < times; ++step) {
      Average(engine, rank, ranks.size(), {{"a", DataType::kFloat32, ReduceOp::kAverage, 3, step}});
    }
  });
}

// One rank's shape differs where all expect the same: a mismatch, as without a vote.
TEST_P(ForecastingTest, AMismatchIsStillNamed) {
  const std::unique_ptr<Ranks> ranks = MakeRanks();
  if (ranks->size() == 1) return ranks->JoinAll();  // one rank agrees with itself
  for (int odd = 0; odd < 2; ++odd) {
    Repeat(*ranks);
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
  Repeat(*ranks);
  ranks->JoinAll();
}

// Withdrawn while the others have not voted yet: the step can be taken again.
TEST_P(ForecastingTest, AVoteCanBeWithdrawn) {
  const std::unique_ptr<Ranks> ranks = MakeRanks();
  if (ranks->size() == 1) return ranks->JoinAll();  // it waits for nobody
  for (int round = 0; round < 3; ++round) {
    Repeat(*ranks);
    const int rank = round % 2;
    const Job job = {"a", DataType::kFloat32, ReduceOp::kAverage, 3, 0};
    std::vector<char> data = MakeInput(job, rank);
    Ticket ticket = 0;
    Ending ending = Submit((*ranks)[rank], MakeRequest(job, data.data(), data.data()), &ticket);
    if (round == 2) std::this_thread::sleep_for(milliseconds(50));  // the coordinator knows of it
    (*ranks)[rank].Withdraw(ticket);
    EXPECT_EQ(Await(ending).code(), Code::kCancelled);
  }
  Repeat(*ranks);
  ranks->JoinAll();
}

// A rank that has ended contributes zeros, where all expected it.
TEST_P(ForecastingTest, ARankThatEnds) {
  const std::unique_ptr<Ranks> ranks = MakeRanks();
  if (ranks->size() == 1) return ranks->JoinAll();
  Repeat(*ranks);
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

// Runs `then` when a message has been received, before the engine hears of it.
class Interrupted : public Decorated {
 public:
  Interrupted(std::unique_ptr<Transport> next, std::function<void()> then)
      : Decorated(std::move(next)), then_(std::move(then)) {}

  Status Receive(std::vector<ControlMessage>* inbox) override {
    const Status status = next_->Receive(inbox);
    if (!inbox->empty()) then_();
    return status;
  }

 private:
  const std::function<void()> then_;
};

// Rank 0 has voted for "a". An announcement that rank 2 made before makes "b" ready, and meanwhile
// the others vote, too: "a" is carried, and comes before "b" on every rank. The test plays the
// others.
TEST_F(ForecastTest, WhatIsCarriedComesBeforeAVerdict) {
  LocalGroup group(3);
  std::atomic<bool> vote{false};
  uint64_t position = 0;
  std::unique_ptr<Transport> one = group.CreateTransport(1), two = group.CreateTransport(2);
  Ballot ballot(one->SharedWord(), 3);
  Engine engine(std::make_unique<Interrupted>(group.CreateTransport(0),
                                              [&] {
                                                if (!vote) return;
                                                EXPECT_EQ(ballot.Vote(position), Outcome::kOpen);
                                                EXPECT_EQ(ballot.Vote(position), Outcome::kCarried);
                                              }),
                TestOptions());
  const auto named = [](const char* name) {
    NamedSignature named;
    named.name = name;
    named.signature.op = ReduceOp::kSum;
    named.signature.shape = {1};
    return named;
  };
  const auto say = [&](Transport& transport, const std::vector<const char*>& names) {
    Announcement announcement;
    for (const char* name : names) announcement.requests.push_back(named(name));
    EXPECT_TRUE(transport.Send(0, Encode(announcement)).ok());
  };
  float values[2] = {1, 10};
  const auto submit = [&](int i) {
    Request request;
    request.name = i == 0 ? "a" : "b";
    request.signature = named("").signature;
    request.input = request.output = &values[i];
    return Submit(engine, std::move(request));
  };
  const auto next_verdict = [&](Transport& transport) {
    std::vector<ControlMessage> inbox;
    while (inbox.empty()) {
      EXPECT_TRUE(transport.Receive(&inbox).ok());
      std::this_thread::yield();
    }
    EXPECT_EQ(inbox.size(), 1u);
    Verdict verdict;
    EXPECT_TRUE(Decode(inbox[0].bytes, &verdict));
    return verdict;
  };
  // Both, at once: rank 0 is in it already.
  const auto add = [&](float number) {
    const auto reduce = [&](Transport& transport) {
      float value = number;
      EXPECT_TRUE(transport
                      .Allreduce(&value, &value, {1, DataType::kFloat32, ReduceOp::kSum, 1},
                                 Clock::now() + std::chrono::seconds(20))
                      .ok());
    };
    std::thread other([&] { reduce(*two); });
    reduce(*one);
    other.join();
  };
  Ending b;
  for (int step = 0; step < 5; ++step) {
    Ending a = submit(0);
    if (step == 4) b = submit(1);
    say(*one, step == 4 ? std::vector<const char*>{"a", "b"} : std::vector<const char*>{"a"});
    say(*two, {"a"});
    EXPECT_EQ(next_verdict(*one).position, position);
    EXPECT_EQ(next_verdict(*two).position, position);
    ++position;
    add(100);
    EXPECT_TRUE(Await(a).ok());
  }
  vote = true;
  Ending a = submit(0);
  while (one->SharedWord()->load() >> 20 != position) std::this_thread::yield();  // it has voted
  say(*two, {"b"});
  add(1000);
  EXPECT_TRUE(Await(a).ok());
  EXPECT_EQ(values[0], 5 * 200 + 1 + 2000);
  vote = false;
  EXPECT_EQ(next_verdict(*one).position, position + 1);
  add(10000);
  EXPECT_TRUE(Await(b).ok());
  EXPECT_EQ(values[1], 10 + 20000);
}

// Who waits for a vote that does not come is told by the coordinator who is missing.
TEST_F(ForecastTest, AStallIsStillReported) {
  for (int missing = 0; missing < 2; ++missing) {
    EngineOptions options = TestOptions();
    std::mutex mutex;
    std::vector<std::string> lines;
    options.coordinator.stall_warning = milliseconds(100);
    options.coordinator.stall_timeout = milliseconds(400);
    options.log = [&](const std::string& line) {
      std::lock_guard<std::mutex> lock(mutex);
      lines.push_back(line);
    };
    Nodes nodes(1, 2);
    Ranks ranks(2, options, nodes.Decorator());
    Repeat(ranks);
    const Job job = {"a", DataType::kFloat32, ReduceOp::kAverage, 3, 0};
    std::vector<char> data = MakeInput(job, 1 - missing);
    Ending ending = Submit(ranks[1 - missing], MakeRequest(job, data.data(), data.data()));
    const Status status = Await(ending);
    EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
    const std::string wanted = "for rank " + std::to_string(missing) + " (rank " +
                               std::to_string(missing) + " last asked for 'a' ";
    EXPECT_NE(status.message().find(wanted), std::string::npos) << status.message();
    {
      std::lock_guard<std::mutex> lock(mutex);
      ASSERT_FALSE(lines.empty());
      EXPECT_NE(lines[0].find(wanted), std::string::npos) << lines[0];
    }
    Ending late = Submit(ranks[missing], MakeRequest(job, data.data(), data.data()));
    EXPECT_EQ(Await(late).code(), Code::kDeadlineExceeded) << "answered already";
    Repeat(ranks);
    ranks.JoinAll();
  }
}

}  // namespace
}  // namespace tfmpi
