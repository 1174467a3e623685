// What TF_MPI_STATS counts: steps, exposed and hidden time, the rank that is waited for.

#include "tensorflow_patches/core/observability/stats.h"

#include "gtest/gtest.h"
#include "tests/core/agreement/coordinator_fixture.h"

namespace tfmpi {
namespace {

using std::chrono::milliseconds;

class StatsTest : public ::testing::Test {
 protected:
  TimePoint At(int ms) const { return zero_ + milliseconds(ms); }

  void Submit(const std::string& name, int ms, ReduceOp op = ReduceOp::kAverage) {
    stats_.Submitted(MakeRequest(name, ms, op));
  }
  void End(const std::string& name, int ms, ReduceOp op = ReduceOp::kAverage) {
    stats_.EndedAt(MakeRequest(name, 0, op), true, At(ms));
  }

  Request MakeRequest(const std::string& name, int ms, ReduceOp op) const {
    Request request;
    request.name = name;
    request.signature.op = op;
    request.signature.shape = {250};
    request.submitted = At(ms);
    return request;
  }

  const TimePoint zero_ = Clock::now();
  CommunicationStats stats_{true};
};

constexpr double kClose = 1e-9;

TEST_F(StatsTest, TimeBeforeTheLastGradientOfAStepIsHidden) {
  for (int step = 0; step < 3; ++step) {
    const int start = 1000 * step;
    Submit("b", start + 100);
    End("b", start + 120);  // 20 hidden: "a" is still being computed
    Submit("a", start + 150);
    Submit("c", start + 160);  // 10 hidden
    End("a", start + 170);
    End("c", start + 200);  // 40 exposed
  }
  const RankStats numbers = stats_.Finish(At(5000));
  EXPECT_EQ(numbers.steps, 3u);
  EXPECT_EQ(numbers.gradients, 9u);
  EXPECT_EQ(numbers.requests, 9u);
  EXPECT_EQ(numbers.bytes, 9000u);
  EXPECT_NEAR(numbers.hidden, 3 * 0.030, kClose);
  EXPECT_NEAR(numbers.exposed, 3 * 0.040, kClose);
}

// The communication thread sees a submission only when it has ended what it does.
TEST_F(StatsTest, ASubmissionCountsFromWhenItWasMade) {
  Submit("b", 0);
  End("b", 100);
  Submit("a", 60);  // while "b" was reduced
  End("a", 150);
  Submit("b", 1000);  // the next step
  End("b", 1001);
  const RankStats numbers = stats_.Finish(At(2000));
  EXPECT_EQ(numbers.steps, 2u);
  EXPECT_NEAR(numbers.hidden, 0.060, kClose);
  EXPECT_NEAR(numbers.exposed, 0.090 + 0.001, kClose);
}

TEST_F(StatsTest, OtherRequestsAreNoGradients) {
  Submit("metric", 0, ReduceOp::kSum);
  End("metric", 500, ReduceOp::kSum);
  const RankStats numbers = stats_.Finish(At(1000));
  EXPECT_EQ(numbers.steps, 0u);
  EXPECT_EQ(numbers.requests, 1u);
  EXPECT_EQ(numbers.exposed + numbers.hidden, 0);
}

TEST_F(StatsTest, OperationsFallIntoBuckets) {
  stats_.OperationBegins(OpKind::kAllreduce, 1, 4096);
  stats_.OperationBegins(OpKind::kAllreduce, 3, 4097);
  stats_.OperationBegins(OpKind::kAllreduce, 100000, uint64_t{1} << 40);
  stats_.OperationBegins(OpKind::kBarrier, 1, 0);
  const RankStats numbers = stats_.Finish(At(0));
  EXPECT_EQ(numbers.operations, 4u);
  EXPECT_EQ(numbers.by_bytes, (std::array<uint64_t, 9>{1, 1, 0, 0, 0, 0, 0, 0, 1}));
  EXPECT_EQ(numbers.by_tensors, (std::array<uint64_t, 12>{1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}));
}

TEST_F(CoordinatorTest, NotesWhoWasTheLastToBeReady) {
  Start(3);
  for (int step = 0; step < 4; ++step) {
    ReadyByNumber(0, "w", {10});
    Advance(milliseconds(5));
    ReadyByNumber(1, "w", {10});
    Advance(milliseconds(20));
    ReadyByNumber(2, "w", {10});
    Decide();
  }
  const std::vector<LastReady>& last = Last();
  EXPECT_EQ(last[0].times + last[1].times, 0u);
  EXPECT_EQ(last[2].times, 4u);
  EXPECT_NEAR(last[2].seconds, 4 * 0.020, kClose);
}

}  // namespace
}  // namespace tfmpi
