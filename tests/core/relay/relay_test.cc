// What a rank holds back and what it forwards for the ranks below it; the tree; the encoding.

#include "tensorflow_patches/core/relay/relay.h"

#include <algorithm>
#include <memory>
#include <random>

#include "gtest/gtest.h"
#include "tensorflow_patches/core/transport/control_links.h"

namespace tfmpi {
namespace {

using std::chrono::milliseconds;

std::string Describe(const RankSet& ranks) {
  std::string text;
  for (const int rank : ranks.ranks()) text += (text.empty() ? "" : " ") + std::to_string(rank);
  return text;
}

// "0 1: #5 #6", in the order in which they are forwarded.
std::string Describe(const std::vector<Announcement>& announcements) {
  std::string text;
  for (const Announcement& one : announcements) {
    text += (text.empty() ? "" : "; ") + Describe(one.ranks) + ":";
    for (const NameId id : one.list.ready) text += " #" + std::to_string(id);
    for (const KnownGather& gather : one.list.gathers) {
      text += " #" + std::to_string(gather.id) + "x" + std::to_string(gather.rows);
    }
    for (const NamedSignature& named : one.list.requests) text += " " + named.name;
    for (const std::string& name : one.list.withdrawn) text += " -" + name;
    if (one.list.joined) text += " joined";
    if (!one.list.leaving.empty()) text += " leaves";
    if (!one.list.wait_state.empty()) text += " waits";
  }
  return text;
}

constexpr NameId kOfSome = 99;  // an operation of some ranks
constexpr NameId kAgain = 10;   // this number and those after it are of the names of 0, 1, ...

class RelayTest : public ::testing::Test {
 protected:
  void Start(const std::vector<int>& below, bool keeps = true) {
    RelayOptions options;
    for (NameId id = 0; id < 2 * kAgain; ++id) names_.push_back(std::to_string(id % kAgain));
    if (keeps) {
      options.name_of_all_ranks = [this](NameId id) {
        return id != kOfSome ? &names_.at(id) : nullptr;
      };
    }
    options.patience = milliseconds(10);
    relay_ = std::make_unique<Relay>(below, std::move(options));
  }
  void Ready(const std::vector<int>& ranks, const std::vector<NameId>& ids) {
    ReadyList list;
    list.ready = ids;
    relay_->Add({RankSet(ranks), list}, now_);
  }
  void Say(int rank, const ReadyList& list) { relay_->Add({RankSet(rank), list}, now_); }
  std::string Due() { return Describe(relay_->TakeDue(now_)); }

  TimePoint now_ = TimePoint() + std::chrono::hours(1);
  std::vector<std::string> names_;  // by number
  std::unique_ptr<Relay> relay_;
};

TEST_F(RelayTest, WhatAllBelowHaveGoesOnAsOne) {
  Start({2, 3, 4});
  Ready({2}, {5, 6});
  EXPECT_EQ(Due(), "");
  Ready({4}, {5});
  Ready({3}, {6});
  EXPECT_EQ(Due(), "");
  Ready({3}, {5});
  Ready({4}, {6});
  EXPECT_EQ(Due(), "2 3 4: #5 #6");
  EXPECT_FALSE(relay_->holds_back());
}

TEST_F(RelayTest, WhatSomeLackGoesOnAfterAWhileAndTheRestAtOnce) {
  Start({0, 1, 2});
  Ready({0}, {1});
  now_ += milliseconds(9);
  Ready({2}, {1, 3});
  EXPECT_EQ(Due(), "");
  now_ += milliseconds(1);
  EXPECT_EQ(Due(), "0 2: #1; 2: #3");
  EXPECT_FALSE(relay_->holds_back());
  Ready({1}, {1, 3});
  EXPECT_EQ(Due(), "1: #1");  // no rank is missing any more
  Ready({0}, {3});
  EXPECT_EQ(Due(), "0 1: #3");
}

// Rank 0 counts each announcement that an error has answered. So a rank's announcements of one name
// stay in order, also by different numbers or by the name itself, and do not share a list.
TEST_F(RelayTest, WhatAnErrorHasAnsweredIsNotHeldBack) {
  Start({0, 1});
  Ready({0}, {1, 2});
  relay_->OnErrors({{"1", Code::kInvalidArgument, "the ranks disagree"}});
  Ready({1}, {1});
  Ready({0}, {1 + kAgain});
  Ready({1}, {1 + kAgain});
  Ready({1}, {1 + kAgain});
  EXPECT_EQ(Due(), "0: #1 #2; 1: #1; 0: #11; 1: #11; 1: #11");
  NamedSignature named;
  named.name = "1";
  ReadyList list;
  list.requests = {named};
  Say(1, list);
  Ready({0, 1}, {1});
  EXPECT_EQ(Due(), "1: 1; 0 1: #1");
  Ready({1}, {3});
  EXPECT_EQ(Due(), "") << "other names are";
}

TEST_F(RelayTest, ANodeIsPassedOnAsItCame) {
  Start({0, 1, 2, 3, 4});
  Ready({2, 3, 4}, {7});
  Ready({0}, {7});
  Ready({1}, {7});
  EXPECT_EQ(Due(), "0 1 2 3 4: #7");
}

// Rows differ by rank, and still go in one message.
TEST_F(RelayTest, RowsGoOnByRank) {
  Start({0, 1, 2});
  for (const int rank : {0, 1, 2}) {
    ReadyList list;
    list.gathers = {{4, rank == 1 ? 8 : 9}, {5, rank + 1}};
    Say(rank, list);
  }
  EXPECT_EQ(Due(), "0 2: #4x9; 1: #4x8 #5x2; 0: #5x1; 2: #5x3");
}

TEST_F(RelayTest, NewNamesGoOnTogetherWhereTheyAreTheSame) {
  Start({0, 1});
  NamedSignature named;
  named.name = "w";
  named.signature.shape = {3};
  ReadyList list;
  list.requests = {named};
  Say(0, list);
  list.requests[0].signature.shape = {4};
  Say(1, list);
  EXPECT_EQ(Due(), "0: w; 1: w");
}

// The coordinator receives the announcements of a rank in order.
TEST_F(RelayTest, WhatMustBeHeardTakesWhatWasKeptWithIt) {
  Start({0, 1, 2});
  Ready({1}, {1});
  ReadyList list;
  list.withdrawn = {"a"};
  Say(1, list);
  Ready({1}, {1});
  EXPECT_EQ(Due(), "1: #1; 1: -a");
  EXPECT_TRUE(relay_->holds_back());
  list = ReadyList();
  list.leaving = "broken";
  Say(2, list);
  EXPECT_EQ(Due(), "1: #1; 2: leaves");
}

TEST_F(RelayTest, WhoHasJoinedOrGivesNothingIsNotWaitedFor) {
  Start({0, 1, 2});
  ReadyList list;
  list.joined = true;
  Say(2, list);
  EXPECT_TRUE(relay_->HaveJoined({2}));
  EXPECT_FALSE(relay_->HaveJoined({1, 2}));
  EXPECT_EQ(Due(), "2: joined");
  Ready({0}, {1});
  EXPECT_EQ(Due(), "");
  list = ReadyList();
  list.wait_state.resize(1);
  list.wait_state[0].has_no_gradients = true;
  Say(1, list);
  EXPECT_EQ(Due(), "0: #1; 1: waits");
  Ready({0}, {2});
  EXPECT_EQ(Due(), "0: #2");
  Ready({1}, {3});
  EXPECT_EQ(Due(), "");
  Ready({0}, {3});
  EXPECT_EQ(Due(), "0 1: #3");
}

TEST_F(RelayTest, OperationsOfSomeRanksAreNotKept) {
  Start({0, 1, 2});
  Ready({1}, {1, kOfSome});
  EXPECT_EQ(Due(), "1: #99");
  NamedSignature named;
  named.name = "w";
  named.signature.members = std::make_shared<const Members>(Members{0, 1});
  ReadyList list;
  list.requests = {named};
  Say(0, list);
  EXPECT_EQ(Due(), "0: w");
}

TEST_F(RelayTest, WithStatisticsNothingIsKept) {
  Start({0, 1}, /*keeps=*/false);
  Ready({1}, {1});
  EXPECT_EQ(Due(), "1: #1");
  EXPECT_FALSE(relay_->holds_back());
}

TEST(AnnouncementTest, WhatGoesInComesOut) {
  std::mt19937 random(5);
  for (int turn = 0; turn < 300; ++turn) {
    std::vector<Announcement> all;
    const int size = 1 + static_cast<int>(random() % 200);
    for (unsigned i = random() % 4; i > 0; --i) {
      Announcement one;
      for (int rank = 0; rank < size; ++rank) {
        if (random() % 3 != 0) one.ranks.Append({rank, 1});
      }
      if (one.ranks.empty()) one.ranks = RankSet(0);
      one.list.ready = {static_cast<NameId>(random() % 7)};
      if (random() % 2 == 0) one.list.leaving = "why";
      all.push_back(one);
    }
    const std::string bytes = Encode(all);
    std::vector<Announcement> read;
    ASSERT_TRUE(Decode(bytes, size, &read));
    ASSERT_EQ(Describe(read), Describe(all));
    if (bytes.empty()) continue;
    EXPECT_FALSE(Decode(bytes.substr(0, bytes.size() - 1), size, &read));
    // Whether or not other bytes are valid, no rank that does not exist is decoded.
    std::string changed = bytes;
    changed[random() % changed.size()] = static_cast<char>(random());
    Decode(changed, size, &read);
    for (const Announcement& one : read) {
      for (const int rank : one.ranks.ranks()) ASSERT_TRUE(rank >= 0 && rank < size);
    }
  }
}

TEST(RankSetTest, IsASetOfRanks) {
  std::mt19937 random(6);
  for (int turn = 0; turn < 500; ++turn) {
    RankSet a, b;
    std::vector<char> in_a(20), in_b(20);
    for (int rank = 0; rank < 20; ++rank) {
      const unsigned where = random() % 4;
      if (where == 0) a.Append({rank, 1});
      if (where == 1) b.Append({rank, 1});
      in_a[rank] = where == 0;
      in_b[rank] = where == 1;
    }
    EXPECT_FALSE(a.Intersects(b));
    a.Add(b);
    int size = 0;
    for (int rank = 0; rank < 20; ++rank) {
      EXPECT_EQ(a.Contains(rank), in_a[rank] || in_b[rank]);
      size += in_a[rank] || in_b[rank];
    }
    EXPECT_EQ(a.size(), size);
    EXPECT_EQ(a.Intersects(b), !b.empty());
    for (const int rank : b.ranks()) a.Remove(rank);
    for (int rank = 0; rank < 20; ++rank) EXPECT_EQ(a.Contains(rank), in_a[rank] != 0);
    EXPECT_EQ(RankSet(std::vector<int>{4, 5, 7}).runs().size(), 2u);
  }
}

// From any rank, going up leads to rank 0, through the ranks that forward for it.
void CheckTree(const std::vector<int>& leaders, int fan_out) {
  const int size = static_cast<int>(leaders.size());
  std::vector<ControlLinks> links;
  for (int rank = 0; rank < size; ++rank) links.push_back(MakeTree(rank, leaders, fan_out));
  for (int rank = 0; rank < size; ++rank) {
    EXPECT_EQ(links[rank].tree, links[0].tree);
    int nodes_below = 0;
    for (const int child : links[rank].children) {
      EXPECT_EQ(links[child].parent, rank);
      EXPECT_GT(child, rank);
      nodes_below += leaders[child] != leaders[rank];
    }
    if (links[0].tree) {
      ASSERT_EQ(links[rank].below_child.size(), links[rank].children.size());
    }
    for (size_t i = 0; i < links[rank].below_child.size(); ++i) {
      EXPECT_EQ(links[rank].below_child[i], links[links[rank].children[i]].below);
    }
    EXPECT_LE(nodes_below, fan_out);
    EXPECT_EQ(links[rank].between_nodes,
              nodes_below != 0 || leaders[links[rank].parent] != leaders[rank]);
    for (int above = rank; links[0].tree; above = links[above].parent) {
      const auto& below = links[above].below;
      EXPECT_TRUE(std::binary_search(below.begin(), below.end(), rank));
      if (above == 0) break;
    }
  }
  EXPECT_EQ(static_cast<int>(links[0].below.size()), links[0].tree ? size : 0);
  size_t children = 0;
  for (const ControlLinks& one : links) children += one.children.size();
  EXPECT_EQ(static_cast<int>(children), size - 1);
}

TEST(ControlLinksTest, EveryRankHasOneWayToRank0) {
  for (const int nodes : {1, 2, 3, 10, 64}) {
    for (const int per_node : {1, 2, 5}) {
      std::vector<int> blocks, turns;
      for (int rank = 0; rank < nodes * per_node; ++rank) {
        blocks.push_back(rank / per_node * per_node);
        turns.push_back(rank % nodes);  // mpirun --map-by node
      }
      for (const int fan_out : {1, 2, 8}) {
        CheckTree(blocks, fan_out);
        CheckTree(turns, fan_out);
      }
    }
  }
  CheckTree({0, 0, 0, 3, 4, 4, 4, 4, 8}, 2);  // nodes of different sizes
}

TEST(ControlLinksTest, FewRanksSpeakWithRank0Themselves) {
  EXPECT_FALSE(MakeTree(1, {0, 0, 0}).tree);
  EXPECT_FALSE(MakeTree(1, {0, 1, 2}).tree);
  EXPECT_TRUE(MakeTree(1, {0, 0, 2, 2}).tree);
  EXPECT_EQ(MakeTree(0, {0, 0, 0}).children, (std::vector<int>{1, 2}));
}

}  // namespace
}  // namespace tfmpi
