// One engine alone, with the test as its peers: messages in orders that are rare with real threads.

#include <deque>
#include <list>

#include "gtest/gtest.h"
#include "tensorflow_patches/core/agreement/envelope.h"
#include "tests/core/support/job.h"
#include "tests/core/support/ranks.h"

namespace tfmpi {
namespace {

using std::chrono::milliseconds;

// The engine of rank 1 of 3, and a coordinator controlled by the test.
class ProtocolTest : public TimedTest {
 protected:
  ProtocolTest()
      : group_(3),
        coordinator_side_(group_.CreateTransport(0)),
        coordinator_(3, TestOptions().coordinator, Clock::now()),
        engine_(std::make_unique<Engine>(group_.CreateTransport(1), TestOptions())) {}

  // On a slow machine the engine may already have sent several.
  ReadyList NextReadyList() {
    while (inbox_.empty()) {  // the watchdog ends a wait that is too long
      std::vector<ControlMessage> received;
      EXPECT_TRUE(coordinator_side_->Receive(&received).ok());
      inbox_.insert(inbox_.end(), received.begin(), received.end());
      if (inbox_.empty()) std::this_thread::sleep_for(milliseconds(1));
    }
    ReadyList ready_list;
    std::string message;
    EXPECT_EQ(Open(++received_, inbox_.front().bytes, &message), "");
    EXPECT_TRUE(Decode(message, &ready_list));
    inbox_.pop_front();
    return ready_list;
  }

  void Announce(int rank, const ReadyList& ready_list) {
    coordinator_.Receive(rank, ready_list, Clock::now());
  }

  static ReadyList Ready(const Request& request) {
    ReadyList ready_list;
    ready_list.requests.push_back({request.name, request.signature, 0});
    return ready_list;
  }
  static ReadyList Ready(const Job& job) { return Ready(MakeRequest(job, nullptr, nullptr)); }

  void SendResponseList() {
    ResponseList response_list = coordinator_.Decide(Clock::now());
    response_list.position = agreements_;
    agreements_ += !response_list.responses.empty();
    EXPECT_TRUE(coordinator_side_->Send(1, Seal(++sent_, Encode(response_list))).ok());
  }

  Ending SubmitValue(const Job& job, Ticket* ticket = nullptr) {
    values_.emplace_back(job.count);
    return Submit(*engine_, MakeRequest(job, values_.back().data(), values_.back().data()), ticket);
  }

  // For an allgather to which this rank contributes two rows.
  void ExpectRefusalOfRows(const std::vector<int64_t>& rows, const std::string& why) {
    Request request = MakeBarrier("g");
    request.signature.kind = OpKind::kAllgather;
    request.signature.shape = {2};
    Ending ending = Submit(*engine_, std::move(request));
    ResponseList response_list;
    response_list.responses.resize(1);
    Response& response = response_list.responses[0];
    response.contributors = 3;
    response.items.resize(1);
    response.items[0].is_new = true;
    response.items[0].named = NextReadyList().requests.at(0);
    response.items[0].rows = rows;
    EXPECT_TRUE(coordinator_side_->Send(1, Seal(++sent_, Encode(response_list))).ok());
    const Status status = Await(ending);
    EXPECT_EQ(status.code(), Code::kInternal);
    EXPECT_NE(status.message().find("'g', " + why), std::string::npos) << status.message();
  }

  LocalGroup group_;
  uint64_t agreements_ = 0;
  uint32_t sent_ = 0, received_ = 0;
  std::unique_ptr<Transport> coordinator_side_;
  Coordinator coordinator_;
  std::deque<ControlMessage> inbox_;
  std::list<std::vector<float>> values_;
  std::unique_ptr<Engine> engine_;
};

// The withdrawal was granted before two other ranks disagreed, and one response list contains both:
// the withdrawn request is cancelled, and the error belongs to the next one of that name.
TEST_F(ProtocolTest, AWithdrawalAndAnErrorOfOneNameInOneResponseList) {
  const Job job = {"w", DataType::kFloat32, ReduceOp::kSum, 2, 0};
  const Job other = {"w", DataType::kFloat32, ReduceOp::kSum, 3, 0};
  Ticket ticket = 0;
  Ending withdrawn = SubmitValue(job, &ticket);
  Announce(1, NextReadyList());
  Ending next = SubmitValue(job);  // waits behind it
  engine_->Withdraw(ticket);
  Announce(1, NextReadyList());
  Announce(0, Ready(job));
  Announce(2, Ready(other));
  SendResponseList();
  const Status first = Await(withdrawn), second = Await(next);
  EXPECT_EQ(first.code(), Code::kCancelled) << first.message();
  EXPECT_EQ(second.code(), Code::kInvalidArgument) << second.message();
  // Coordinator and engine agree on what comes next.
  Announce(1, NextReadyList());
  Ending third = SubmitValue(job);
  Announce(1, NextReadyList());
  Announce(0, Ready(other));
  SendResponseList();
  EXPECT_EQ(Await(third).code(), Code::kInvalidArgument);
}

// The same with a third request of a name that has a number. A ready list contains a number only
// once, so the second request, which the error answers, is announced before the third.
TEST_F(ProtocolTest, TheRequestAfterAWithdrawalAndAnErrorIsAnnouncedToo) {
  const ReadyList barrier = Ready(MakeBarrier("b"));  // moves no data
  const auto announce_others = [&](const ReadyList& of_rank_2) {
    Announce(0, barrier);
    Announce(2, of_rank_2);
    SendResponseList();
  };
  Ending known = Submit(*engine_, MakeBarrier("b"));
  Announce(1, NextReadyList());
  announce_others(barrier);
  EXPECT_TRUE(Await(known).ok());
  Ticket ticket = 0;
  Ending withdrawn = Submit(*engine_, MakeBarrier("b"), &ticket);
  Announce(1, NextReadyList());
  Ending second = Submit(*engine_, MakeBarrier("b")), third = Submit(*engine_, MakeBarrier("b"));
  engine_->Withdraw(ticket);
  Announce(1, NextReadyList());
  announce_others(Ready({"b", DataType::kFloat32, ReduceOp::kSum, 2, 0}));
  EXPECT_EQ(Await(withdrawn).code(), Code::kCancelled);
  EXPECT_EQ(Await(second).code(), Code::kInvalidArgument);
  Announce(1, NextReadyList());
  Announce(1, NextReadyList());
  announce_others(barrier);
  EXPECT_TRUE(Await(third).ok());
}

TEST_F(ProtocolTest, AKnownNameIsAnnouncedByItsNumber) {
  const ReadyList barrier = Ready(MakeBarrier("b"));  // moves no data
  for (int use = 0; use < 3; ++use) {
    Ending ending = Submit(*engine_, MakeBarrier("b"));
    const ReadyList ready_list = NextReadyList();
    EXPECT_EQ(ready_list.requests.size(), use == 0 ? 1u : 0u);
    EXPECT_EQ(ready_list.ready, use == 0 ? std::vector<NameId>() : std::vector<NameId>({0}));
    Announce(1, ready_list);
    for (int rank : {0, 2}) Announce(rank, barrier);
    SendResponseList();
    EXPECT_TRUE(Await(ending).ok());
  }
}

TEST_F(ProtocolTest, WithdrawnBeforeItWasAnnounced) {
  const Job job = {"w", DataType::kFloat32, ReduceOp::kSum, 2, 0};
  // Both reach the engine together or one after the other, with the same result.
  for (int i = 0; i < 20; ++i) {
    Ticket ticket = 0;
    Ending ending = SubmitValue(job, &ticket);
    engine_->Withdraw(ticket);
    ReadyList ready_list = NextReadyList();
    Announce(1, ready_list);
    if (ready_list.withdrawn.empty()) Announce(1, NextReadyList());
    SendResponseList();
    EXPECT_EQ(Await(ending).code(), Code::kCancelled);
  }
}

TEST_F(ProtocolTest, AResponseListThatCannotBeReadEndsTheEngine) {
  Ending ending = SubmitValue({"w", DataType::kFloat32, ReduceOp::kSum, 2, 0});
  NextReadyList();
  EXPECT_TRUE(coordinator_side_->Send(1, Seal(1, "\xff\xff\xff garbage")).ok());
  const Status status = Await(ending);
  EXPECT_EQ(status.code(), Code::kInternal);
  EXPECT_NE(NextReadyList().leaving, "") << "the others are told";
}

// As when another process has sent messages as this rank: taking part would read memory that does
// not exist, or leave the others without this rank's part.
TEST_F(ProtocolTest, WhatItHasNotAskedForIsRefused) {
  const Job asked = {"w", DataType::kFloat32, ReduceOp::kSum, 2, 0};
  const Job other = {"x", DataType::kFloat32, ReduceOp::kSum, 2, 0};
  Ending ending = SubmitValue(asked);
  NextReadyList();
  for (int rank = 0; rank < 3; ++rank) Announce(rank, Ready(other));
  SendResponseList();
  const Status status = Await(ending);
  EXPECT_EQ(status.code(), Code::kInternal);
  for (const char* part : {"rank 1/3", "rank 0", "'x'", "has not announced"}) {
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  }
  EXPECT_NE(NextReadyList().leaving, "") << "the others are told";
}

// Its memory has another size.
TEST_F(ProtocolTest, AnotherShapeThanItHasIsRefused) {
  Ending ending = SubmitValue({"w", DataType::kFloat32, ReduceOp::kSum, 2, 0});
  NextReadyList();
  const ReadyList larger = Ready(Job{"w", DataType::kFloat32, ReduceOp::kSum, 3, 0});
  for (int rank = 0; rank < 3; ++rank) Announce(rank, larger);
  SendResponseList();
  const Status status = Await(ending);
  EXPECT_EQ(status.code(), Code::kInternal);
  EXPECT_NE(status.message().find("'w', as allreduce sum of float32 [3], but has announced "
                                  "allreduce sum of float32 [2]"),
            std::string::npos)
      << status.message();
}

TEST_F(ProtocolTest, ANumberThatItWasNotToldIsRefused) {
  Ending ending = SubmitValue({"w", DataType::kFloat32, ReduceOp::kSum, 2, 0});
  NextReadyList();
  ResponseList response_list;
  response_list.responses.resize(1);
  response_list.responses[0].items.resize(1);
  response_list.responses[0].items[0].id = 5;
  EXPECT_TRUE(coordinator_side_->Send(1, Seal(++sent_, Encode(response_list))).ok());
  const Status status = Await(ending);
  EXPECT_EQ(status.code(), Code::kInternal);
  EXPECT_NE(status.message().find("for number 5, which rank 0 has never assigned"),
            std::string::npos)
      << status.message();
}

// More rows than it has would be read beyond its memory.
TEST_F(ProtocolTest, OtherRowsThanItHasAreRefused) {
  ExpectRefusalOfRows({1, 9, 1}, "with a row count for this rank that differs from its own");
}
TEST_F(ProtocolTest, RowsOfTooFewRanksAreRefused) {
  ExpectRefusalOfRows({1, 2}, "with row counts of 2 ranks");
}

TEST_F(ProtocolTest, AnErrorOfAnotherNameEndsNothing) {
  Ending ending = SubmitValue({"w", DataType::kFloat32, ReduceOp::kSum, 2, 0});
  Announce(1, NextReadyList());
  Announce(0, Ready({"x", DataType::kFloat32, ReduceOp::kSum, 2, 0}));
  Announce(2, Ready({"x", DataType::kFloat32, ReduceOp::kSum, 3, 0}));
  SendResponseList();
  EXPECT_EQ(ending.wait_for(milliseconds(100)), std::future_status::timeout);
  engine_.reset();
  const Status status = Await(ending);
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_EQ(status.message(), "the engine has stopped");
}

TEST(CoordinatorEngineTest, AReadyListThatCannotBeReadEndsAll) {
  Watchdog watchdog(std::chrono::seconds(20));
  LocalGroup group(2);
  std::unique_ptr<Transport> peer = group.CreateTransport(1);
  Engine engine(group.CreateTransport(0), TestOptions());
  Ending ending = Submit(engine, MakeBarrier("b"));
  EXPECT_TRUE(peer->Send(0, "\xff\xff\xff").ok());
  const Status status = Await(ending);
  EXPECT_EQ(status.code(), Code::kInternal);
  EXPECT_NE(status.message().find("rank 1"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace tfmpi
