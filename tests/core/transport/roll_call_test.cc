// The first exchange of a group: settings that differ, ranks that do not arrive, other builds.

#include "tensorflow_patches/core/transport/roll_call.h"

#include <map>
#include <mutex>

#include "gtest/gtest.h"
#include "tests/core/support/ranks.h"

namespace tfmpi {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class RollCallTest : public TimedTest {
 protected:
  // The result of the roll call on each rank; a rank whose settings are kAbsent does not take part.
  static constexpr char kAbsent[] = "absent";
  static constexpr char kOther[] = "other build";  // it says something of its own

  std::vector<Status> Call(const std::vector<std::string>& settings,
                           Clock::duration timeout = seconds(20)) {
    const int size = static_cast<int>(settings.size());
    LocalGroup group(size);
    std::vector<Status> ends(size);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        const std::unique_ptr<Transport> transport = group.CreateTransport(rank);
        if (settings[rank] == kAbsent) return;
        if (settings[rank] == kOther) {
          EXPECT_TRUE(transport->Send(0, "hello?").ok());
          return;
        }
        RollCallOptions options;
        options.settings = settings[rank];
        options.timeout = options.grace = timeout;
        options.report_wait = [&](const std::string& whom) {
          std::lock_guard<std::mutex> lock(mutex_);
          waits_[rank].push_back(whom);
        };
        ends[rank] = RollCall(transport.get(), options);
      });
    }
    for (std::thread& thread : threads) thread.join();
    return ends;
  }

  std::mutex mutex_;
  std::map<int, std::vector<std::string>> waits_;  // by rank
};

TEST_F(RollCallTest, RanksThatAreAlikeGoOn) {
  for (int size : {1, 2, 5}) {
    for (const Status& status : Call(std::vector<std::string>(size, "wheel=1\nA=x\nB=y z\n"))) {
      EXPECT_TRUE(status.ok()) << status.message();
    }
    EXPECT_EQ(waits_[0].back(), "");
  }
}

TEST_F(RollCallTest, WhatDiffersIsNamedWithAllValuesOnAllRanks) {
  const std::string same = "wheel=1\nA=x\nB=y z\nC=\n";
  const std::vector<Status> ends =
      Call({same, same, "wheel=1\nA=w\nB=y z\nC=\n", "wheel=1\nA=x\nB=y z\n"});
  for (const Status& status : ends) {
    EXPECT_EQ(status.code(), Code::kFailedPrecondition);
    EXPECT_EQ(status.message(),
              "the ranks' settings differ, and would make them train different models: A: ranks 0, "
              "1 and 3 have 'x', rank 2 has 'w'; C: ranks 0, 1 and 2 have '', rank 3 has 'nothing'"
              ". Set them to the same values everywhere; Open MPI's mpirun passes them to other "
              "nodes only with -x A -x C");
  }
}

TEST_F(RollCallTest, AnotherBuildIsTheOnlyCause) {
  for (const Status& status : Call({"wheel=1\nA=x\n", "wheel=2\nNEW=x\n"})) {
    EXPECT_EQ(status.code(), Code::kFailedPrecondition);
    EXPECT_EQ(status.message(),
              "the ranks run different builds, wheel: rank 0 has '1', rank 1 has '2'; install the "
              "same wheel on all nodes");
  }
}

TEST_F(RollCallTest, WhoeverDoesNotAnswerIsNamedAndAllEnd) {
  const TimePoint start = Clock::now();
  const std::vector<Status> ends =
      Call({"wheel=1\n", kAbsent, "wheel=1\n", kAbsent}, milliseconds(300));
  EXPECT_LT(Clock::now() - start, seconds(TFMPI_SANITIZED ? 20 : 5));
  EXPECT_EQ(ends[0].code(), Code::kDeadlineExceeded);
  for (int rank : {0, 2}) {
    EXPECT_NE(ends[rank].message().find("ranks 1 and 3 did not answer"), std::string::npos)
        << ends[rank].message();
  }
  std::lock_guard<std::mutex> lock(mutex_);
  EXPECT_NE(std::find(waits_[0].begin(), waits_[0].end(), "ranks 1 and 3 to send their settings"),
            waits_[0].end());
}

TEST_F(RollCallTest, ARankWithoutRankZeroEnds) {
  const std::vector<Status> ends = Call({kAbsent, "wheel=1\n"}, milliseconds(200));
  EXPECT_EQ(ends[1].code(), Code::kDeadlineExceeded);
  EXPECT_NE(ends[1].message().find("rank 0 has not compared"), std::string::npos);
  EXPECT_EQ(waits_[1].back(), "rank 0 to compare the settings of all ranks");
}

TEST_F(RollCallTest, WhatIsNoHelloIsAnotherBuild) {
  const std::vector<Status> ends = Call({"wheel=1\n", "wheel=1\n", kOther});
  for (int rank : {0, 1}) {
    EXPECT_EQ(ends[rank].code(), Code::kFailedPrecondition);
    EXPECT_NE(ends[rank].message().find("rank 2 runs another build"), std::string::npos);
  }
}

TEST_F(RollCallTest, ManyRanksAreNotAllNamed) {
  std::vector<int> ranks(20);
  for (int i = 0; i < 20; ++i) ranks[i] = i;
  EXPECT_EQ(NameRanks(ranks), "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 12 more");
  EXPECT_EQ(NameRanks({3, 5}), "ranks 3 and 5");
  EXPECT_EQ(NameRanks({3}), "rank 3");
}

}  // namespace
}  // namespace tfmpi
