// Real runs, on threads, over both transports of a node: what their ranks said and did fits the
// model that every explored run fits (tests/core/explore).

#include "tests/core/model/trace.h"

#include <random>

#include "gtest/gtest.h"
#include "tests/core/support/job.h"
#include "tests/core/support/nodes.h"
#include "tests/core/support/ranks.h"

namespace tfmpi {
namespace {

constexpr int kRanks = 3;
constexpr int kTracedSteps = TFMPI_SANITIZED ? 60 : 300;

// Threads for each rank's engine, and what they record.
class TracedRun {
 public:
  explicit TracedRun(bool node) : trace_(kRanks), nodes_(1, kRanks) {
    const auto options = [this](int rank) {
      EngineOptions options = TestOptions();
      options.trace = trace_.Recorder(rank);
      return options;
    };
    ranks_ = std::make_unique<Ranks>(kRanks, options, node ? nodes_.Decorator() : nullptr);
  }

  Ranks& ranks() { return *ranks_; }
  // When the ranks have joined.
  const Trace& trace() const { return trace_; }

 private:
  Trace trace_;
  Nodes nodes_;
  std::unique_ptr<Ranks> ranks_;
};

class TraceTest : public TimedTest, public ::testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(Transports, TraceTest, ::testing::Bool(), [](const auto& test) {
  return std::string(test.param ? "Node" : "Local");
});

// Mostly repeated steps, mixed with other orders, withdrawals, differing shapes, and ranks of which
// one ends before the others.
void Train(Engine& engine, int rank) {
  std::mt19937 common(7), own(100 + rank);
  const int steps = rank == 2 ? kTracedSteps / 2 : kTracedSteps;
  for (int step = 0; step < steps; ++step) {
    const unsigned kind = common() % 24;
    const int differs = static_cast<int>(common() % kRanks);
    std::vector<std::vector<char>> data;
    std::vector<Ending> endings;
    const auto ask = [&](const char* name, size_t count) {
      const Job job = {name, DataType::kFloat32, ReduceOp::kSum, count, step};
      data.push_back(MakeInput(job, rank));
      Ticket ticket = 0;
      endings.push_back(
          Submit(engine, MakeRequest(job, data.back().data(), data.back().data()), &ticket));
      return ticket;
    };
    data.reserve(4);
    const bool swapped = kind == 0 && own() % 2 == 0;
    ask(swapped ? "b" : "a", swapped ? 8 : 30);
    ask(swapped ? "a" : "b", swapped ? 30 : 8);
    if (kind == 1) ask("c", rank == differs ? 5 : 6);
    if (kind == 2) {
      const Ticket ticket = ask("d", 4);
      if (rank == differs) engine.Withdraw(ticket);
    }
    Status last;
    for (Ending& ending : endings) last = Await(ending);
    if (kind == 2 && rank == differs && last.code() == Code::kCancelled) {
      endings.clear();
      ask("d", 4);
      EXPECT_TRUE(Await(endings.front()).ok());
    }
  }
}

TEST_P(TraceTest, ARealRunFitsTheModel) {
  TracedRun run(GetParam());
  run.ranks().Each([](int rank, Engine& engine) {
    Train(engine, rank);
    EXPECT_TRUE(engine.Join().ok());
  });
  EXPECT_EQ(run.trace().Check(), "");
  EXPECT_EQ(run.trace().Replay(), "");
  std::printf("%d agreements by messages, %d by votes\n", run.trace().response_lists(),
              run.trace().voted());
  EXPECT_GT(run.trace().response_lists(), kTracedSteps / 2);
  if (!TFMPI_SANITIZED) {  // under which a vote may take longer than its patience
    EXPECT_GT(run.trace().voted(), 0);
  }
}

// The model rejects a run that does not fit.
TEST(TraceModelTest, FindsWhatDoesNotFit) {
  using What = EngineOptions::Event;
  ReadyList ready_list;
  ready_list.requests.resize(1);
  ready_list.requests[0].name = "a";
  ResponseList response_list;
  response_list.responses.resize(1);
  response_list.responses[0].items.resize(1);
  response_list.responses[0].items[0].id = 0;
  response_list.responses[0].items[0].is_new = true;
  response_list.responses[0].items[0].named.name = "a";
  response_list.responses[0].contributors = 2;
  const auto run = [&](const std::vector<int>& heard, bool other_rank_does_less) {
    Trace trace(2);
    const auto zero = trace.Recorder(0), one = trace.Recorder(1);
    for (const int rank : heard) zero(What::kReadyList, rank, Encode(ready_list));
    zero(What::kResponseList, 0, Encode(response_list));
    ResponseList other = response_list;
    if (other_rank_does_less) other.responses[0].contributors = 1;
    one(What::kResponseList, 0, Encode(other));
    return trace.Check();
  };
  EXPECT_EQ(run({0, 1}, false), "");
  EXPECT_EQ(run({0}, false), "'a' without rank 1");
  EXPECT_EQ(run({0, 0, 1}, false), "rank 0 announces 'a' twice");
  EXPECT_EQ(run({0, 1}, true), "rank 1 does something else than rank 0");
  response_list.responses[0].contributors = 1;
  EXPECT_EQ(run({0, 1}, false), "'a' is of 2 ranks, not of 1");
}

// Two requests with two names: in another order, or one too many.
TEST(TraceModelTest, FindsADecisionThatTheCoordinatorWouldNotMake) {
  using What = EngineOptions::Event;
  const auto run = [](const std::string& names) {
    Trace trace(2);
    const auto zero = trace.Recorder(0);
    ReadyList ready_list;
    ready_list.requests.resize(2);
    ready_list.requests[0].name = "a";
    ready_list.requests[1].name = "b";
    for (const int rank : {0, 1}) zero(What::kReadyList, rank, Encode(ready_list));
    ResponseList response_list;
    for (size_t i = 0; i < names.size(); ++i) {
      ResponseItem item;
      item.id = static_cast<NameId>(i);
      item.is_new = true;
      item.named = ready_list.requests[names[i] == 'a' ? 0 : 1];
      response_list.responses.push_back({{item}, 2});
    }
    zero(What::kResponseList, 0, Encode(response_list));
    return trace.Replay();
  };
  EXPECT_EQ(run("ab"), "");
  EXPECT_NE(run("ba").find("not 0 of 2 'a'"), std::string::npos) << run("ba");
  EXPECT_EQ(run("a"), "rank 0 told 1 things, not 2");
}

}  // namespace
}  // namespace tfmpi
