// The parts of an agreement without messages: the vote, and the prediction.

#include "tensorflow_patches/core/agreement/consensus.h"

#include <atomic>
#include <cstdio>
#include <random>
#include <thread>

#include "gtest/gtest.h"
#include "tensorflow_patches/core/agreement/predictor.h"
#include "tests/core/support/ranks.h"

namespace tfmpi {
namespace {

class ConsensusTest : public TimedTest {};

TEST_F(ConsensusTest, IsCommittedByAllAndRejectedByOne) {
  std::atomic<uint64_t> word{0};
  Consensus consensus(&word, 3);
  EXPECT_EQ(consensus.Look(0), Outcome::kOpen);
  EXPECT_EQ(consensus.Vote(0), Outcome::kOpen);
  EXPECT_EQ(consensus.Vote(0), Outcome::kOpen);
  EXPECT_EQ(consensus.Vote(0), Outcome::kCommitted);
  bool rejected_votes = true;
  EXPECT_EQ(consensus.Reject(0, &rejected_votes), Outcome::kCommitted) << "too late";
  EXPECT_FALSE(rejected_votes);
  EXPECT_EQ(consensus.Vote(1), Outcome::kOpen);
  EXPECT_EQ(consensus.Reject(1, &rejected_votes), Outcome::kRejected);
  EXPECT_TRUE(rejected_votes) << "who has voted waits for it";
  EXPECT_EQ(consensus.Reject(1, &rejected_votes), Outcome::kRejected);
  EXPECT_FALSE(rejected_votes) << "it has been told";
  EXPECT_EQ(consensus.Vote(1), Outcome::kRejected);
  EXPECT_EQ(consensus.Vote(2), Outcome::kOpen);
  EXPECT_EQ(consensus.Reject(3, &rejected_votes), Outcome::kRejected);
  EXPECT_FALSE(rejected_votes) << "nobody has voted";
  EXPECT_EQ(consensus.Look(1), Outcome::kRejected) << "others have passed it without this rank";
  EXPECT_EQ(Consensus(nullptr, 3).Vote(0), Outcome::kRejected);
}

// The others have gone on without the third rank, which has voted and not looked.
TEST_F(ConsensusTest, TheLastCommitStaysKnown) {
  std::atomic<uint64_t> word{0};
  Consensus consensus(&word, 3);
  bool rejected_votes = false;
  EXPECT_EQ(consensus.Reject(0, &rejected_votes), Outcome::kRejected);
  for (int rank = 0; rank < 3; ++rank) consensus.Vote(1);
  EXPECT_EQ(consensus.Look(0), Outcome::kRejected);
  EXPECT_EQ(consensus.Vote(2), Outcome::kOpen);
  EXPECT_EQ(consensus.Look(1), Outcome::kCommitted);
  for (const uint64_t next : {2, 4, 5}) {
    EXPECT_EQ(consensus.Reject(next, &rejected_votes), Outcome::kRejected);
    EXPECT_EQ(consensus.Look(1), Outcome::kCommitted);
    EXPECT_EQ(consensus.Reject(1, &rejected_votes), Outcome::kCommitted);
    EXPECT_EQ(consensus.Look(2), Outcome::kRejected);
  }
  for (int rank = 0; rank < 3; ++rank) consensus.Vote(6);
  EXPECT_EQ(consensus.Reject(7, &rejected_votes), Outcome::kRejected);
  EXPECT_EQ(consensus.Look(6), Outcome::kCommitted);
  EXPECT_EQ(consensus.Look(5), Outcome::kRejected);
  EXPECT_EQ(consensus.Vote(1'000'000), Outcome::kOpen);
  for (const uint64_t before : {6, 7, 999'999}) {
    EXPECT_EQ(consensus.Look(before), Outcome::kRejected) << "too long ago";
  }
}

// Every rank sees the same outcome at every position, and what is committed has all votes.
TEST_F(ConsensusTest, IsDecidedAlikeForAll) {
  constexpr int kRanks = 4, kPositions = TFMPI_SANITIZED ? 1000 : 2000;
  std::atomic<uint64_t> word{0};
  std::vector<std::atomic<int>> votes(kPositions), committed(kPositions), rejected(kPositions);
  const auto rank = [&](int rank) {
    std::mt19937 random(rank);
    Consensus consensus(&word, kRanks);
    bool rejected_votes = false;
    for (int p = 0; p < kPositions; ++p) {
      Outcome outcome = Outcome::kOpen;
      if (random() % 16 == 0) {
        outcome = consensus.Reject(p, &rejected_votes);
      } else {
        ++votes[p];
        outcome = consensus.Vote(p);
        const bool impatient = random() % 16 == 0;
        while (outcome == Outcome::kOpen) {
          outcome = impatient ? consensus.Reject(p, &rejected_votes) : consensus.Look(p);
          std::this_thread::yield();
        }
      }
      ++(outcome == Outcome::kCommitted ? committed : rejected)[p];
    }
  };
  std::vector<std::thread> threads;
  for (int r = 0; r < kRanks; ++r) threads.emplace_back(rank, r);
  for (std::thread& thread : threads) thread.join();
  int times = 0;
  for (int p = 0; p < kPositions; ++p) {
    EXPECT_TRUE(committed[p] == 0 || committed[p] == kRanks) << p;
    EXPECT_TRUE(committed[p] == 0 || votes[p] == kRanks) << p;
    EXPECT_EQ(committed[p] + rejected[p], kRanks) << p;
    times += committed[p] != 0;
  }
  std::printf("%d of %d committed\n", times, kPositions);
  EXPECT_GT(times, kPositions / 20);
  EXPECT_LT(times, kPositions);
}

class PredictorTest : public TimedTest {
 protected:
  PredictorTest() {
    for (NameId i = 0; i < 4; ++i) Number(i, {5});
  }

  ResponseList Of(const std::vector<NameId>& ids, int contributors = 2) const {
    ResponseList response_list;
    for (NameId id : ids) {
      response_list.responses.push_back({{ResponseItem()}, contributors});
      response_list.responses.back().items[0].id = id;
      if (GathersRows(table_.signature(id).kind))
        response_list.responses.back().items[0].rows = {1, 1};
    }
    return response_list;
  }
  void Number(NameId id, const Shape& shape, OpKind kind = OpKind::kAllreduce) {
    NamedSignature named;
    named.name = "w" + std::to_string(id);
    named.signature.kind = kind;
    named.signature.shape = shape;
    table_.Number(id, named);
  }
  void OnResponseList(const ResponseList& response_list) {
    predictor_.OnResponseList(response_list, table_);
  }

  NameTable table_;
  ResponsePredictor predictor_{2};
};

using Names = std::vector<NameId>;

TEST_F(PredictorTest, ExpectsWhatFollowedTwice) {
  for (int step = 0; step < 2; ++step) {
    OnResponseList(Of({2, 0}));
    OnResponseList(Of({1}));
    EXPECT_EQ(predictor_.names(), Names());
  }
  OnResponseList(Of({2, 0}));
  EXPECT_EQ(predictor_.names(), Names({1})) << "1 came twice after 2 and 0";
  predictor_.OnPredictionHit();
  EXPECT_EQ(predictor_.names(), Names({0, 2}));
  EXPECT_EQ(predictor_.response_list().responses[0].items[0].id, 2u) << "in its order";
  OnResponseList(Of({3}));
  EXPECT_EQ(predictor_.names(), Names());
  OnResponseList(Of({2, 0}));
  EXPECT_EQ(predictor_.names(), Names({1})) << "what it knew before";
}

TEST_F(PredictorTest, ExpectsOnlyReductionsAndRowsOfAll) {
  const auto expects = [&](const ResponseList& response_list) {
    for (int i = 0; i < 4; ++i) OnResponseList(response_list);
    return !predictor_.names().empty();
  };
  EXPECT_TRUE(expects(Of({1})));
  EXPECT_FALSE(expects(Of({1}, /*contributors=*/1))) << "a rank has ended";
  Number(2, {5}, OpKind::kBroadcast);
  EXPECT_FALSE(expects(Of({2})));
  Number(1, {5, 2}, OpKind::kSparseAllgather);
  EXPECT_TRUE(expects(Of({1, 0})));
  ResponseList fresh = Of({0});
  fresh.responses[0].items[0].is_new = true;
  EXPECT_FALSE(expects(fresh));
}

TEST_F(PredictorTest, FitsWhatHoldsAllThatIsExpected) {
  for (int i = 0; i < 4; ++i) OnResponseList(Of({2, 0}));
  ReadyList ready_list;
  ready_list.ready = {2, 0};
  EXPECT_TRUE(predictor_.Fits(ready_list));
  ready_list.ready = {0, 2, 1};
  EXPECT_TRUE(predictor_.Fits(ready_list)) << "1 is for later";
  ready_list.ready = {0, 1, 3};
  EXPECT_FALSE(predictor_.Fits(ready_list));
  ready_list.ready = {0};
  EXPECT_FALSE(predictor_.Fits(ready_list));
  ready_list.ready = {0, 2};
  ready_list.withdrawn = {"w0"};
  EXPECT_FALSE(predictor_.Fits(ready_list));
}

TEST_F(PredictorTest, TheRowsAreNotExpected) {
  Number(3, {5, 2}, OpKind::kSparseAllgather);
  for (int i = 0; i < 4; ++i) OnResponseList(Of({3, 0}));
  ReadyList ready_list;
  ready_list.ready = {0};
  EXPECT_FALSE(predictor_.Fits(ready_list));
  ready_list.gathers = {{3, 7}};
  EXPECT_TRUE(predictor_.Fits(ready_list));
  ready_list.gathers = {{2, 7}};
  EXPECT_FALSE(predictor_.Fits(ready_list));
  EXPECT_EQ(predictor_.gathers(), Names({3}));
  predictor_.SetRows(0, [](int rank) { return 10 + rank; });
  EXPECT_EQ(predictor_.response_list().responses[0].items[0].rows, std::vector<int64_t>({10, 11}));
}

TEST_F(PredictorTest, ForgetsAScriptThatNeverRepeatsItself) {
  for (NameId id = 4; id < 500; ++id) {
    Number(id, {5});
    OnResponseList(Of({id}));
  }
  for (int i = 0; i < 4; ++i) OnResponseList(Of({1}));
  EXPECT_EQ(predictor_.names(), Names({1}));
}

}  // namespace
}  // namespace tfmpi
