// Requests that are withdrawn, and ranks with fewer steps than others.

#include <random>

#include "gtest/gtest.h"
#include "tests/core/support/job.h"
#include "tests/core/support/ranks.h"

namespace tfmpi {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

class WithdrawTest : public TimedTest {};

TEST_F(WithdrawTest, AnUnansweredRequestIsCancelledAndTheNextOneMeetsThePeers) {
  Ranks ranks(2);
  const Job job = {"w", DataType::kFloat32, ReduceOp::kSum, 6, 0};
  std::vector<char> in[2] = {MakeInput(job, 0), MakeInput(job, 1)};
  std::vector<char> out[2] = {in[0], in[1]};
  for (int withdrawing : {0, 1}) {
    Ticket ticket = 0;
    Request request = MakeRequest(job, in[withdrawing].data(), out[withdrawing].data());
    Ending withdrawn = Submit(ranks[withdrawing], request, &ticket);
    std::this_thread::sleep_for(milliseconds(20));  // the coordinator knows of it
    ranks[withdrawing].Withdraw(ticket);
    const Status status = Await(withdrawn);
    EXPECT_EQ(status.code(), Code::kCancelled);
    EXPECT_NE(status.message().find("'w'"), std::string::npos);
    ranks.Each([&](int rank, Engine& engine) {
      Ending ending = Submit(engine, MakeRequest(job, in[rank].data(), out[rank].data()));
      EXPECT_TRUE(Await(ending).ok());
      EXPECT_EQ(CheckOutput(job, AllRanks(2), out[rank].data()), "");
    });
    ranks[withdrawing].Withdraw(ticket);  // it has ended: ignored
  }
  ranks.JoinAll();
}

TEST_F(WithdrawTest, FromTheMiddleOfOneName) {
  Ranks ranks(2);
  std::vector<Ending> endings;
  std::vector<Ticket> tickets(5);
  std::vector<float> in(5), out(5);
  auto submit = [&](int rank, int i, Ticket* ticket) {
    const Job job = {"w", DataType::kFloat32, ReduceOp::kSum, 1, 0};
    return Submit(ranks[rank], MakeRequest(job, &in[i], &out[i]), ticket);
  };
  for (int i = 0; i < 5; ++i) {
    in[i] = static_cast<float>(i);
    endings.push_back(submit(0, i, &tickets[i]));
  }
  ranks[0].Withdraw(tickets[2]);
  EXPECT_EQ(Await(endings[2]).code(), Code::kCancelled);
  float peer_in[4] = {10, 20, 30, 40}, peer_out[4];
  std::vector<Ending> peers;
  for (int i = 0; i < 4; ++i) {
    const Job job = {"w", DataType::kFloat32, ReduceOp::kSum, 1, 0};
    peers.push_back(Submit(ranks[1], MakeRequest(job, &peer_in[i], &peer_out[i])));
  }
  for (int i : {0, 1, 3, 4}) EXPECT_TRUE(Await(endings[i]).ok());
  EXPECT_EQ(AwaitAll(peers), "");
  EXPECT_EQ(std::vector<float>(peer_out, peer_out + 4), std::vector<float>({10, 21, 33, 44}));
  ranks.JoinAll();
}

// Iterators that exist at the end of a script may each have requested what the other rank does not
// request: after an error that reached it before.
TEST_F(WithdrawTest, WhatDataSetsHaveAskedForDoesNotKeepRanksFromEnding) {
  Ranks ranks(2);
  std::vector<float> in(4), out(4);
  std::vector<Ending> endings;
  for (int i = 0; i < 4; ++i) {  // two of each name, one after the other
    const Job job = {"of rank " + std::to_string(i % 2), DataType::kFloat32, ReduceOp::kSum, 1, 0};
    Request request = MakeRequest(job, &in[i], &out[i]);
    request.purpose = Purpose::kData;
    endings.push_back(Submit(ranks[i % 2], request));
  }
  ranks.JoinAll();
  for (Ending& ending : endings) {
    const Code code = Await(ending).code();  // a rank that has ended takes part with nothing
    EXPECT_TRUE(code == Code::kCancelled || code == Code::kOk);
  }
}

// Withdrawals race with agreement: each request ends as cancelled, or with ok because the
// withdrawal was too late. A rank whose request was cancelled submits again; every step must get
// the right result.
TEST_F(WithdrawTest, RacesWithAgreement) {
  constexpr int kRanks = 3, kSteps = 300;
  Ranks ranks(kRanks);
  std::atomic<int> cancelled{0}, too_late{0};
  ranks.Each([&](int rank, Engine& engine) {
    std::mt19937 random(rank);
    for (int step = 0; step < kSteps; ++step) {
      const Job job = {"w" + std::to_string(step % 3), DataType::kFloat32, ReduceOp::kAverage, 5,
                       step};
      const std::vector<char> in = MakeInput(job, rank);
      std::vector<char> out(in.size());
      bool withdraw = random() % 2 == 0;
      while (true) {
        Ticket ticket = 0;
        Ending ending = Submit(engine, MakeRequest(job, in.data(), out.data()), &ticket);
        if (withdraw) {
          std::this_thread::sleep_for(microseconds(random() % 300));
          engine.Withdraw(ticket);
        }
        const Status status = Await(ending);
        if (status.ok()) {
          too_late += withdraw;
          break;
        }
        ASSERT_TRUE(withdraw) << "cancelled without being withdrawn";
        ASSERT_EQ(status.code(), Code::kCancelled) << status.message();
        ++cancelled;
        withdraw = random() % 2 == 0;
      }
      EXPECT_EQ(CheckOutput(job, AllRanks(kRanks), out.data()), "") << "rank " << rank;
    }
  });
  EXPECT_GT(cancelled, 0);
  EXPECT_GT(too_late, 0);
  ranks.JoinAll();
}

class JoinTest : public TimedTest, public ::testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, JoinTest, ::testing::Values(1, 2, 3, 5, 8));

// Each rank has another number of steps; the coordinator's rank the fewest or the most.
TEST_P(JoinTest, AveragesAreOverTheRanksThatStillHaveData) {
  for (bool coordinator_first : {true, false}) {
    Ranks ranks(GetParam());
    const auto steps = [&](int rank) {
      return 5 + 4 * (coordinator_first ? rank : ranks.size() - 1 - rank);
    };
    ranks.Each([&](int rank, Engine& engine) {
      for (int step = 0; step < steps(rank); ++step) {
        std::vector<int> contributors;
        for (int r = 0; r < ranks.size(); ++r) {
          if (steps(r) > step) contributors.push_back(r);
        }
        std::vector<Job> jobs;
        for (DataType type : {DataType::kFloat32, DataType::kFloat16, DataType::kComplex128}) {
          for (ReduceOp op : {ReduceOp::kAverage, ReduceOp::kSum}) {
            // The last one does not fit into the fusion buffer.
            for (size_t count : {3, 50, 1500}) {
              jobs.push_back({Name(type) + std::string(Name(op)) + std::to_string(count), type, op,
                              count, step});
            }
          }
        }
        std::vector<std::vector<char>> data;
        std::vector<Ending> endings;
        for (const Job& job : jobs) data.push_back(MakeInput(job, rank));
        for (size_t i = 0; i < jobs.size(); ++i) {
          endings.push_back(Submit(engine, MakeRequest(jobs[i], data[i].data(), data[i].data())));
        }
        EXPECT_EQ(AwaitAll(endings), "");
        for (size_t i = 0; i < jobs.size(); ++i) {
          EXPECT_EQ(CheckOutput(jobs[i], contributors, data[i].data()), "") << "step " << step;
        }
      }
      const Status status = engine.Join();
      EXPECT_TRUE(status.ok()) << status.message();
    });
  }
}

using OrderTest = TimedTest;

TEST_F(OrderTest, AFinishedRankTakesPartWithNothing) {
  Ranks ranks(3);
  std::thread finished([&] { EXPECT_TRUE(ranks[1].Join().ok()); });
  ranks.Each([&](int rank, Engine& engine) {
    if (rank == 1) return;
    Ending barrier = Submit(engine, MakeBarrier("b"));
    EXPECT_TRUE(Await(barrier).ok());

    std::vector<char> row(4, static_cast<char>(rank)), rows;
    Request gather;
    gather.name = "g";
    gather.signature.kind = OpKind::kAllgather;
    gather.signature.dtype = DataType::kUint8;
    gather.signature.shape = {2, 2};
    gather.input = row.data();
    gather.allocate = [&](const std::vector<int64_t>& counts) -> void* {
      EXPECT_EQ(counts, std::vector<int64_t>({2, 0, 2}));
      rows.resize(8);
      return rows.data();
    };
    Ending gathered = Submit(engine, gather);
    EXPECT_TRUE(Await(gathered).ok());
    EXPECT_EQ(rows, std::vector<char>({0, 0, 0, 0, 2, 2, 2, 2}));

    for (int root : {2, 1}) {
      Request broadcast;
      broadcast.name = "from" + std::to_string(root);
      broadcast.signature.kind = OpKind::kBroadcast;
      broadcast.signature.dtype = DataType::kUint8;
      broadcast.signature.root = root;
      broadcast.signature.shape = {4};
      broadcast.output = row.data();
      Ending ending = Submit(engine, broadcast);
      const Status status = Await(ending);
      EXPECT_EQ(status.code(), root == 1 ? Code::kFailedPrecondition : Code::kOk)
          << status.message();
    }
    EXPECT_EQ(row, std::vector<char>(4, 2));
    EXPECT_TRUE(engine.Join().ok());
  });
  finished.join();
}

TEST_F(OrderTest, JoinWaitsForWhatIsPending) {
  Ranks ranks(2);
  float in[2] = {1, 2}, out[2] = {};
  const Job job = {"w", DataType::kFloat32, ReduceOp::kSum, 1, 0};
  Ending first = Submit(ranks[0], MakeRequest(job, &in[0], &out[0]));
  std::thread joining([&] { EXPECT_TRUE(ranks[0].Join().ok()); });
  std::this_thread::sleep_for(milliseconds(50));
  Ending late = Submit(ranks[0], MakeBarrier("late"));
  EXPECT_EQ(late.wait_for(milliseconds(0)), std::future_status::ready);
  Ending second = Submit(ranks[1], MakeRequest(job, &in[1], &out[1]));
  EXPECT_TRUE(Await(first).ok());
  EXPECT_TRUE(Await(second).ok());
  EXPECT_EQ(out[0], 3);
  EXPECT_EQ(out[1], 3);
  EXPECT_TRUE(ranks[1].Join().ok());
  joining.join();
}

TEST_F(OrderTest, WhatComesAfterJoinFailsInsideSubmit) {
  Ranks ranks(2);
  ranks.JoinAll();
  Ending ending = Submit(ranks[1], MakeBarrier("late"));
  ASSERT_EQ(ending.wait_for(milliseconds(0)), std::future_status::ready);
  const Status status = ending.get();
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_NE(status.message().find("'late'"), std::string::npos);
}

}  // namespace
}  // namespace tfmpi
