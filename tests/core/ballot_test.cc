// The parts of an agreement without a message: the vote, and what is expected.

#include "tensorflow_patches/core/ballot.h"

#include <atomic>
#include <cstdio>
#include <random>
#include <thread>

#include "gtest/gtest.h"
#include "tensorflow_patches/core/forecast.h"
#include "tests/core/ranks.h"

namespace tfmpi {
namespace {

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
      if (GathersRows(table_.signature(id).kind)) verdict.responses.back().items[0].rows = {1, 1};
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
  Number(1, {5, 2}, OpKind::kExchange);
  EXPECT_FALSE(expects(Of({1}))) << "nor in this, if no rank has rows";
  EXPECT_TRUE(expects(Of({1, 0})));
  Verdict fresh = Of({0});
  fresh.responses[0].items[0].is_new = true;
  EXPECT_FALSE(expects(fresh));
}

TEST_F(ForecastTest, FitsWhatHoldsAllThatIsExpected) {
  for (int i = 0; i < 4; ++i) Came(Of({2, 0}));
  Announcement announcement;
  announcement.ready = {2, 0};
  EXPECT_TRUE(forecast_.Fits(announcement));
  announcement.ready = {0, 2, 1};
  EXPECT_TRUE(forecast_.Fits(announcement)) << "1 is for later";
  announcement.ready = {0, 1, 3};
  EXPECT_FALSE(forecast_.Fits(announcement));
  announcement.ready = {0};
  EXPECT_FALSE(forecast_.Fits(announcement));
  announcement.ready = {0, 2};
  announcement.withdrawn = {"w0"};
  EXPECT_FALSE(forecast_.Fits(announcement));
}

TEST_F(ForecastTest, TheRowsAreNotExpected) {
  Number(3, {5, 2}, OpKind::kExchange);
  for (int i = 0; i < 4; ++i) Came(Of({3, 0}));
  Announcement announcement;
  announcement.ready = {0};
  EXPECT_FALSE(forecast_.Fits(announcement));
  announcement.gathers = {{3, 7}};
  EXPECT_TRUE(forecast_.Fits(announcement));
  announcement.gathers = {{2, 7}};
  EXPECT_FALSE(forecast_.Fits(announcement));
  EXPECT_EQ(forecast_.gathers(), Names({3}));
  forecast_.SetRows(0, [](int rank) { return 10 + rank; });
  EXPECT_EQ(forecast_.verdict().responses[0].items[0].rows, std::vector<int64_t>({10, 11}));
}

TEST_F(ForecastTest, ForgetsAScriptThatNeverRepeatsItself) {
  for (NameId id = 4; id < 500; ++id) {
    Number(id, {5});
    Came(Of({id}));
  }
  for (int i = 0; i < 4; ++i) Came(Of({1}));
  EXPECT_EQ(forecast_.names(), Names({1}));
}

}  // namespace
}  // namespace tfmpi
