// Engines that agree without messages, as seen by one of them: the test acts as the others.

#include <atomic>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tensorflow_patches/core/agreement/consensus.h"
#include "tensorflow_patches/core/agreement/envelope.h"
#include "tests/core/agreement/steps.h"
#include "tests/core/support/decorated.h"
#include "tests/core/support/job.h"
#include "tests/core/support/nodes.h"
#include "tests/core/support/ranks.h"

namespace tfmpi {
namespace {

using std::chrono::milliseconds;

// Runs `then` when a message has been received, before the engine processes it.
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

class VotingTest : public TimedTest {};

// Rank 0 has voted for "a". An earlier ready list of rank 2 makes "b" ready, and meanwhile the
// others vote, too: "a" is committed, and comes before "b" on every rank. The test acts as the
// other ranks.
TEST_F(VotingTest, WhatIsCommittedComesBeforeAResponseList) {
  LocalGroup group(3);
  std::atomic<bool> vote{false};
  uint64_t position = 0;
  std::unique_ptr<Transport> one = group.CreateTransport(1), two = group.CreateTransport(2);
  Consensus consensus(one->SharedWord(), 3);
  EngineOptions options = TestOptions();
  options.vote_patience =
      std::chrono::seconds(20);  // so that a busy machine does not end rank 0's vote
  Engine engine(std::make_unique<Interrupted>(group.CreateTransport(0),
                                              [&] {
                                                if (!vote) return;
                                                EXPECT_EQ(consensus.Vote(position), Outcome::kOpen);
                                                EXPECT_EQ(consensus.Vote(position),
                                                          Outcome::kCommitted);
                                              }),
                options);
  const auto named = [](const char* name) {
    NamedSignature named;
    named.name = name;
    named.signature.op = ReduceOp::kSum;
    named.signature.shape = {1};
    return named;
  };
  uint32_t sent[3] = {}, received[3] = {};
  const auto say = [&](Transport& transport, const std::vector<const char*>& names) {
    ReadyList ready_list;
    for (const char* name : names) ready_list.requests.push_back(named(name));
    const int rank = transport.topology().rank;
    EXPECT_TRUE(transport.Send(0, Seal(++sent[rank], Encode(ready_list))).ok());
  };
  float values[2] = {1, 10};
  const auto submit = [&](int i) {
    Request request;
    request.name = i == 0 ? "a" : "b";
    request.signature = named("").signature;
    request.input = request.output = &values[i];
    return Submit(engine, std::move(request));
  };
  const auto next_response_list = [&](Transport& transport) {
    std::vector<ControlMessage> inbox;
    while (inbox.empty()) {
      EXPECT_TRUE(transport.Receive(&inbox).ok());
      std::this_thread::yield();
    }
    EXPECT_EQ(inbox.size(), 1u);
    std::string message;
    EXPECT_EQ(Open(++received[transport.topology().rank], inbox[0].bytes, &message), "");
    ResponseList response_list;
    EXPECT_TRUE(Decode(message, &response_list));
    return response_list;
  };
  // Both, at once: rank 0 is already in it.
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
    EXPECT_EQ(next_response_list(*one).position, position);
    EXPECT_EQ(next_response_list(*two).position, position);
    ++position;
    add(100);
    EXPECT_TRUE(Await(a).ok());
  }
  vote = true;
  Ending a = submit(0);
  while (one->SharedWord()->load() >> 24 != position) std::this_thread::yield();  // it has voted
  say(*two, {"b"});
  add(1000);
  EXPECT_TRUE(Await(a).ok());
  EXPECT_EQ(values[0], 5 * 200 + 1 + 2000);
  vote = false;
  EXPECT_EQ(next_response_list(*one).position, position + 1);
  add(10000);
  EXPECT_TRUE(Await(b).ok());
  EXPECT_EQ(values[1], 10 + 20000);
}

// A rank that waits for a missing vote learns from the coordinator who is missing.
TEST_F(VotingTest, AStallIsStillReported) {
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
    RepeatSteps(ranks);
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
    RepeatSteps(ranks);
    ranks.JoinAll();
  }
}

}  // namespace
}  // namespace tfmpi
