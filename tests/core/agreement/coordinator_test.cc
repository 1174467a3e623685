// The coordinator alone, with time as an argument: which response lists result from which ready
// lists.

#include <algorithm>
#include <random>
#include <set>

#include "tests/core/agreement/coordinator_fixture.h"

namespace tfmpi {
namespace {

TEST_F(CoordinatorTest, NothingIsAgreedBeforeEveryRankIsReady) {
  Start(3);
  for (int rank : {2, 0}) {
    Ready(rank, "w", {4});
    EXPECT_TRUE(Decide().empty());
  }
  Ready(1, "w", {4});
  const ResponseList response_list = Decide();
  ASSERT_EQ(response_list.responses.size(), 1u);
  EXPECT_EQ(response_list.responses[0].contributors, 3);
  ASSERT_EQ(response_list.responses[0].items.size(), 1u);
  const ResponseItem& item = response_list.responses[0].items[0];
  EXPECT_TRUE(item.is_new);
  EXPECT_EQ(item.named.name, "w");
  EXPECT_EQ(item.named.signature.shape, Shape({4}));
  EXPECT_TRUE(Decide().empty());
}

TEST_F(CoordinatorTest, AnyOrderPerRankGivesOneOrderForAll) {
  Start(4);
  std::mt19937 random(5);
  std::vector<std::string> names;
  for (int i = 0; i < 30; ++i) names.push_back("v" + std::to_string(i));
  for (int step = 0; step < 20; ++step) {
    std::vector<std::string> order = names;
    for (int rank = 0; rank < 4; ++rank) {
      std::shuffle(order.begin(), order.end(), random);
      for (const std::string& name : order) ReadyByNumber(rank, name, {2});
    }
    // Ready everywhere when the last rank announces it, hence in that rank's order.
    EXPECT_EQ(Names(Decide()), order);
  }
}

TEST_F(CoordinatorTest, SubsetsAreAgreedOnAndTheRestStays) {
  Start(2);
  for (const char* name : {"a", "b", "c"}) Ready(0, name, {1});
  Ready(1, "c", {1});
  EXPECT_EQ(Names(Decide()), std::vector<std::string>({"c"}));
  Ready(1, "a", {1});
  EXPECT_EQ(Names(Decide()), std::vector<std::string>({"a"}));
  Ready(1, "b", {1});
  EXPECT_EQ(Names(Decide()), std::vector<std::string>({"b"}));
}

TEST_F(CoordinatorTest, ANameTravelsOnceThenItsNumber) {
  Start(2);
  for (int step = 0; step < 3; ++step) {
    for (int rank : {0, 1}) ReadyByNumber(rank, "w", {3});
    const ResponseList response_list = Decide();
    ASSERT_EQ(response_list.responses.size(), 1u);
    EXPECT_EQ(response_list.responses[0].items[0].is_new, step == 0);
    EXPECT_EQ(response_list.responses[0].items[0].id, 0u);
  }
}

TEST_F(CoordinatorTest, AnotherShapeUnderAKnownNameGetsANewNumber) {
  Start(2);
  ReadyEverywhere("w", {3});
  EXPECT_EQ(Decide().responses[0].items[0].id, 0u);
  for (int rank : {0, 1}) Ready(rank, "w", {5});  // the model was rebuilt
  const ResponseList rebuilt = Decide();
  ASSERT_EQ(rebuilt.responses.size(), 1u);
  EXPECT_TRUE(rebuilt.responses[0].items[0].is_new);
  EXPECT_EQ(rebuilt.responses[0].items[0].id, 1u);
  EXPECT_EQ(rebuilt.responses[0].items[0].named.signature.shape, Shape({5}));
  ReadyEverywhere("w", {5});
  const ResponseList known = Decide();
  EXPECT_FALSE(known.responses[0].items[0].is_new);
  EXPECT_EQ(known.responses[0].items[0].id, 1u);
  // Rebuilt on one rank only: its old number stands for the old shape.
  ReadyList old;
  old.ready = {0};
  Send(0, old);
  Ready(1, "w", {5});
  EXPECT_EQ(Decide().errors.size(), 1u);
}

// As when a script calls one collective with many shapes.
TEST_F(CoordinatorTest, ANameKeepsANumberForEachShapeUpToALimit) {
  Start(2);
  std::set<NameId> ids;
  for (int time = 0; time < 3; ++time) {
    for (int64_t size = 0; size < 10; ++size) {
      ReadyEverywhere("allreduce", {size});
      const ResponseItem item = Decide().responses.at(0).items.at(0);
      EXPECT_EQ(item.is_new, time == 0);
      ids.insert(item.id);
    }
  }
  EXPECT_EQ(ids.size(), 10u);
  for (int64_t size = 10; size < 1000; ++size) {
    ReadyEverywhere("allreduce", {size});
    ids.insert(Decide().responses.at(0).items.at(0).id);
  }
  EXPECT_LT(ids.size(), 20u) << "the others travel by name";
  EXPECT_EQ(ids.count(kNoId), 1u);
}

void ExpectRefusal(const ResponseList& response_list, const std::vector<std::string>& parts) {
  EXPECT_TRUE(response_list.responses.empty());
  for (const std::string& part : parts) {
    EXPECT_NE(response_list.fatal.find(part), std::string::npos) << response_list.fatal;
  }
}

TEST_F(CoordinatorTest, NumbersThatWereNeverGivenAreRefused) {
  for (const NameId id : {NameId{0}, NameId{7}, kNoId}) {
    Start(2);
    ReadyList ready_list;
    ready_list.ready = {id};
    Send(1, ready_list);
    ExpectRefusal(Decide(), {"rank 1/2 announced number " + std::to_string(id) +
                             ", which rank 0 has not assigned to a request without rows"});
  }
  // A number announced as one of rows that has none, and the reverse, are refused, too.
  for (const bool gathers : {true, false}) {
    Start(1);
    Signature signature = Average({2});
    if (!gathers) signature.kind = OpKind::kSparseAllgather;
    Ready(0, "w", signature);
    ASSERT_EQ(Decide().responses.at(0).items.at(0).id, 0u);
    ReadyList ready_list;
    if (gathers) {
      ready_list.gathers = {{0, 1}};
    } else {
      ready_list.ready = {0};
    }
    Send(0, ready_list);
    ExpectRefusal(Decide(),
                  {gathers ? "number 0, which rank 0 has not assigned to a request with "
                           : "number 0, which rank 0 has not assigned to a request without "});
  }
}

// It must not count for a rank that has not announced it.
TEST_F(CoordinatorTest, ASecondAnnouncementBeforeAnAnswerIsRefused) {
  Start(2);
  for (int time = 0; time < 2; ++time) Ready(1, "w", {1});
  ExpectRefusal(Decide(), {"rank 1/2 announced 'w' twice before rank 0 answered",
                           "or this is a bug in tensorflow.mpi; please report it"});
}

TEST_F(CoordinatorTest, AllgatherTellsEveryRanksRows) {
  Start(3);
  Signature signature;
  signature.kind = OpKind::kAllgather;
  for (int step = 0; step < 2; ++step) {
    for (int rank : {1, 2, 0}) {
      signature.shape = {rank * 2, 5};  // rank 0 has none
      Ready(rank, "g", signature);
    }
    const ResponseList response_list = Decide();
    ASSERT_EQ(response_list.responses.size(), 1u);
    const ResponseItem& item = response_list.responses[0].items[0];
    EXPECT_TRUE(item.is_new) << "its name may never come back, so it gets no number";
    EXPECT_EQ(item.id, kNoId);
    EXPECT_EQ(item.rows, std::vector<int64_t>({0, 2, 4}));
  }
}

TEST_F(CoordinatorTest, ASparseAllgatherTravelsByItsNumberAndEachRanksRows) {
  Start(3);
  Signature signature;
  signature.kind = OpKind::kSparseAllgather;
  signature.extra_row_bytes = 8;
  signature.row_limit = 100;
  for (int rank : {1, 2, 0}) {
    signature.shape = {rank * 2, 5};
    Ready(rank, "rows", signature);
  }
  const ResponseItem first = Decide().responses.at(0).items.at(0);
  EXPECT_TRUE(first.is_new);
  EXPECT_EQ(first.named.signature, WithoutRows(signature));
  EXPECT_EQ(first.rows, std::vector<int64_t>({0, 2, 4}));
  for (int64_t rank = 0; rank < 3; ++rank) {
    ReadyList ready_list;
    ready_list.gathers = {{first.id, 7 + rank}};
    Send(static_cast<int>(rank), ready_list);
  }
  const ResponseItem second = Decide().responses.at(0).items.at(0);
  EXPECT_FALSE(second.is_new);
  EXPECT_EQ(second.id, first.id);
  EXPECT_EQ(second.rows, std::vector<int64_t>({7, 8, 9}));
  // By name from a rank that does not know the number, and nothing from one that has joined.
  Join(0);
  ReadyList known;
  known.gathers = {{first.id, 3}};
  Send(1, known);
  Ready(2, "rows", signature);
  const ResponseList third = Decide();
  EXPECT_EQ(third.responses.at(0).contributors, 2);
  EXPECT_EQ(third.responses.at(0).items.at(0).rows, std::vector<int64_t>({0, 3, 0}));
}

TEST_F(CoordinatorTest, ASparseAndADenseGradientOfOneNameAreAMismatch) {
  Start(2);
  Signature sparse;
  sparse.kind = OpKind::kSparseAllgather;
  sparse.shape = {3, 4};
  sparse.extra_row_bytes = 8;
  Ready(0, "w", sparse);
  Ready(1, "w", {10, 4});
  const ResponseList response_list = Decide();
  ASSERT_EQ(response_list.errors.size(), 1u);
  for (const char* part : {"rank 0", "allgather", "[3, 4]", "rank 1", "allreduce", "[10, 4]"}) {
    EXPECT_NE(response_list.errors[0].message.find(part), std::string::npos)
        << response_list.errors[0].message;
  }
}

TEST_F(CoordinatorTest, AMismatchNamesBothRanksAndWhatTheyHave) {
  Start(4);
  Ready(2, "w", {3, 4});
  Ready(1, "w", {3, 5});
  const ResponseList response_list = Decide();
  EXPECT_TRUE(response_list.responses.empty());
  ASSERT_EQ(response_list.errors.size(), 1u);
  EXPECT_EQ(response_list.errors[0].name, "w");
  EXPECT_EQ(response_list.errors[0].code, Code::kInvalidArgument);
  EXPECT_EQ(response_list.errors[0].message,
            "the ranks disagree on 'w': rank 1 has allreduce average of float32 [3, 5], rank 2 has "
            "allreduce average of float32 [3, 4]; all ranks must build the same model, and call "
            "collectives with the same dtype and shape")
      << "in the order of the ranks, not of their coming";
}

TEST_F(CoordinatorTest, AMismatchOfTheWeightAloneIsNamed) {
  Start(2);
  Signature weighted = Average({3});
  weighted.weighted = true;
  Ready(0, "w", weighted);
  Ready(1, "w", Average({3}));
  const ResponseList response_list = Decide();
  ASSERT_EQ(response_list.errors.size(), 1u);
  EXPECT_EQ(response_list.errors[0].message,
            "the ranks disagree on 'w': rank 0 has allreduce average of float32 [3], weighted, "
            "rank 1 has allreduce average of float32 [3], not weighted; all ranks must build the "
            "same model, and call collectives with the same dtype and shape");
}

TEST_F(CoordinatorTest, AMismatchOfTensorsThatShareARequestNamesTheFirstThatDiffers) {
  const auto of_parts = [](const std::vector<std::string>& names, int64_t size) {
    Parts parts;
    parts.names = names;
    for (size_t i = 0; i < names.size(); ++i) parts.shapes.push_back({size});
    Signature signature = Average({size * static_cast<int64_t>(names.size())});
    signature.parts = std::make_shared<const Parts>(parts);
    return signature;
  };
  const std::pair<Signature, const char*> others[] = {
      {of_parts({"kernel", "gamma"}, 3), "'w': rank 0 has 'bias', rank 1 has 'gamma' in its place"},
      {of_parts({"kernel", "bias"}, 4),
       "'kernel': rank 0 has allreduce average of float32 [3], "
       "rank 1 has allreduce average of float32 [4]"},
      {of_parts({"kernel"}, 3), "'w': rank 0 has 2 tensors, rank 1 has 1"}};
  for (const auto& [other, words] : others) {
    Start(2);
    Ready(0, "w", of_parts({"kernel", "bias"}, 3));
    Ready(1, "w", other);
    const ResponseList response_list = Decide();
    ASSERT_EQ(response_list.errors.size(), 1u);
    EXPECT_EQ(response_list.errors[0].message,
              "the ranks disagree on " + std::string(words) +
                  "; all ranks must build the same model, and call collectives with the same dtype "
                  "and shape");
  }
}

TEST_F(CoordinatorTest, EveryPartOfASignatureMustAgree) {
  Signature base;
  base.kind = OpKind::kBroadcast;
  base.shape = {2, 3};
  Signature kind = base, op = base, type = base, root = base, shape = base, rank = base;
  kind.kind = OpKind::kAllreduce;
  op.op = ReduceOp::kMax;
  type.dtype = DataType::kFloat64;
  root.root = 1;
  shape.shape = {3, 2};
  rank.shape = {6};
  for (const Signature& other : {kind, op, type, root, shape, rank}) {
    Start(2);
    Ready(0, "x", base);
    Ready(1, "x", other);
    EXPECT_EQ(Decide().errors.size(), 1u) << Describe(other);
  }
  Signature gather, wider;
  gather.kind = wider.kind = OpKind::kSparseAllgather;
  gather.shape = {2, 3};
  wider.shape = {2, 4};
  Signature indexed = gather, limited = gather, repeated = gather;
  indexed.extra_row_bytes = 8;
  limited.row_limit = 5;
  repeated.every_row = true;
  const std::pair<Signature, const char*> others[] = {
      {wider, "rank 1 has sparse allgather of float32 [2, 4];"},
      {indexed, "rank 1 has sparse allgather of float32 [2, 3];"},
      {limited, "rank 1 has sparse allgather of float32 [2, 3], at most 5 rows in total;"},
      {repeated, "rank 1 has sparse allgather of float32 [2, 3], including duplicates;"}};
  for (const auto& [other, words] : others) {
    Start(2);
    Ready(0, "x", gather);
    Ready(1, "x", other);
    const ResponseList response_list = Decide();
    ASSERT_EQ(response_list.errors.size(), 1u) << "rows may differ in number, not in form";
    const std::string& message = response_list.errors[0].message;
    EXPECT_NE(message.find(words), std::string::npos) << message;
  }
}

TEST_F(CoordinatorTest, ALateRankOfAMismatchDoesNotConfuseTheNextUse) {
  Start(3);
  Ready(0, "w", {1});
  Ready(1, "w", {2});
  ASSERT_EQ(Decide().errors.size(), 1u);
  // Ranks 0 and 1 get their error and try again, correctly, before rank 2 announces it the first
  // time.
  Ready(0, "w", {1});
  Ready(1, "w", {1});
  Ready(2, "w", {2});  // the engine of rank 2 answers this one with the error it was sent
  EXPECT_TRUE(Decide().empty());
  Ready(2, "w", {1});
  const ResponseList response_list = Decide();
  ASSERT_EQ(response_list.responses.size(), 1u);
  EXPECT_EQ(response_list.responses[0].items[0].named.signature.shape, Shape({1}));
}

TEST_F(CoordinatorTest, ARankThatIsLateForTwoErrorsIsAnsweredTwice) {
  Start(3);
  for (int time = 0; time < 2; ++time) {
    Ready(0, "w", {1});
    Ready(1, "w", {2});
    ASSERT_EQ(Decide().errors.size(), 1u);
  }
  for (int time = 0; time < 3; ++time) Ready(2, "w", {1});  // the third is a new one
  for (int rank : {0, 1}) Ready(rank, "w", {1});
  const ResponseList response_list = Decide();
  EXPECT_EQ(response_list.fatal, "");
  EXPECT_EQ(response_list.responses.size(), 1u);
}

TEST_F(CoordinatorTest, WithdrawalBeforeAgreementIsGranted) {
  Start(2);
  Ready(0, "w", {1});
  Withdraw(0, "w");
  const ResponseList response_list = Decide();
  ASSERT_EQ(response_list.withdrawn.size(), 1u);
  EXPECT_EQ(response_list.withdrawn[0].rank, 0);
  EXPECT_EQ(response_list.withdrawn[0].name, "w");
  Ready(1, "w", {1});
  EXPECT_TRUE(Decide().empty()) << "rank 0 is no longer ready";
  Ready(0, "w", {1});
  EXPECT_EQ(Decide().responses.size(), 1u);
}

TEST_F(CoordinatorTest, WithdrawalKeepsTheOthersReady) {
  Start(3);
  for (int rank : {0, 1}) Ready(rank, "w", {1});
  Withdraw(0, "w");
  Ready(2, "w", {1});
  EXPECT_TRUE(Decide().responses.empty());
  Ready(0, "w", {1});
  EXPECT_EQ(Decide().responses.size(), 1u);
}

TEST_F(CoordinatorTest, AReportDoesNotNameARankThatHasWithdrawn) {
  Start(3);
  for (int rank : {0, 1}) Ready(rank, "w", {1});
  Withdraw(0, "w");
  Ready(2, "w", {2});
  const ResponseList response_list = Decide();
  ASSERT_EQ(response_list.errors.size(), 1u);
  EXPECT_EQ(
      response_list.errors[0].message.rfind(
          "the ranks disagree on 'w': rank 1 has allreduce average of float32 [1], rank 2", 0),
      0u)
      << response_list.errors[0].message;
}

// Its rows counted until it joined without any.
TEST_F(CoordinatorTest, WithdrawnRowsAreNobodys) {
  Start(3);
  Signature signature;
  signature.kind = OpKind::kAllgather;
  signature.shape = {7, 5};
  Ready(1, "g", signature);
  Withdraw(1, "g");
  Decide();
  Join(1);
  Ready(0, "g", signature);
  Ready(2, "g", signature);
  const ResponseList response_list = Decide();
  ASSERT_EQ(response_list.responses.size(), 1u);
  EXPECT_EQ(response_list.responses[0].items[0].rows, std::vector<int64_t>({7, 0, 7}));
}

TEST_F(CoordinatorTest, WithdrawalAfterAgreementComesTooLate) {
  Start(2);
  ReadyEverywhere("w", {1});
  Withdraw(0, "w");
  const ResponseList response_list = Decide();
  EXPECT_EQ(response_list.responses.size(), 1u);
  EXPECT_TRUE(response_list.withdrawn.empty());
  Withdraw(1, "never heard of");
  EXPECT_TRUE(Decide().empty());
}

TEST_F(CoordinatorTest, LeavingIsFatalForAllAndTheFirstReasonStands) {
  Start(3);
  ReadyList ready_list;
  ready_list.leaving = "ValueError in train.py";
  Send(1, ready_list);
  ready_list.leaving = "because rank 1 left";
  Send(2, ready_list);
  const std::string fatal = Decide().fatal;
  EXPECT_NE(fatal.find("rank 1/3"), std::string::npos) << fatal;
  EXPECT_NE(fatal.find("ValueError in train.py"), std::string::npos) << fatal;
}

}  // namespace
}  // namespace tfmpi
