// Updates: the average of a gradient, and what it does to a variable and its slots, as one
// operation.

#include <algorithm>

#include "gtest/gtest.h"
#include "tests/core/counting_states.h"
#include "tests/core/job.h"
#include "tests/core/nodes.h"
#include "tests/core/ranks.h"

namespace tfmpi {
namespace {

struct Form {
  int nodes;
  int per_node;
  Stores stores = Stores::kAuto;
  bool flat = false;  // no shared memory
};

std::string NameOf(const Form& form) {
  const char* const stores[] = {"", "_cached", "_streamed"};
  return std::to_string(form.nodes) + "x" + std::to_string(form.per_node) +
         stores[static_cast<int>(form.stores)] + (form.flat ? "_flat" : "");
}

class UpdateTest : public TimedTest, public ::testing::WithParamInterface<Form> {
 protected:
  UpdateTest() {
    NodeOptions options;
    options.stores = GetParam().stores;
    nodes_ = std::make_unique<Nodes>(GetParam().nodes, GetParam().per_node, options);
    const Ranks::Decorate plain = nullptr;
    ranks_ = std::make_unique<Ranks>(GetParam().nodes * GetParam().per_node, TestOptions(),
                                     GetParam().flat ? plain : nodes_->Decorator());
  }

  bool divides() const { return GetParam().nodes == 1 && !GetParam().flat; }

  // Differs by rank, element and step.
  static std::vector<double> Gradient(int rank, size_t count, int step) {
    std::vector<double> gradient(count);
    for (size_t i = 0; i < count; ++i) {
      gradient[i] = static_cast<double>((i * 7 + step) % 13) * (rank + 1);
    }
    return gradient;
  }

  // Of each element as `contributors` must have it after one update; "" if all do.
  static std::string Check(const CountingStates& states, const std::vector<int>& contributors,
                           int step) {
    const size_t count = states.after()[0].size();
    std::vector<double> average(count);
    for (const int rank : contributors) {
      const std::vector<double> gradient = Gradient(rank, count, step);
      for (size_t i = 0; i < count; ++i) average[i] += gradient[i];
    }
    const double scale = 1.0 / static_cast<double>(contributors.size());
    for (size_t s = 0; s < states.after().size(); ++s) {
      for (size_t i = 0; i < count; ++i) {
        const double expected = CountingStates::Updated(
            s, states.before()[s][i], s > 0 ? states.before()[s - 1][i] : 0, average[i] * scale);
        if (states.after()[s][i] != expected) {
          return "state " + std::to_string(s) + " [" + std::to_string(i) + "] is " +
                 std::to_string(states.after()[s][i]) + ", not " + std::to_string(expected);
        }
      }
    }
    return "";
  }

  std::unique_ptr<Nodes> nodes_;
  std::unique_ptr<Ranks> ranks_;
};
INSTANTIATE_TEST_SUITE_P(Forms, UpdateTest,
                         ::testing::Values(Form{1, 1}, Form{1, 2}, Form{1, 3}, Form{1, 5},
                                           Form{2, 2}, Form{1, 2, Stores::kStreamed},
                                           Form{1, 3, Stores::kStreamed},
                                           Form{1, 2, Stores::kCached},
                                           Form{1, 3, Stores::kAuto, true}),
                         [](const auto& test) { return NameOf(test.param); });

// Less than a share for each rank; one block; many pieces.
TEST_P(UpdateTest, EveryElementIsUpdatedOnce) {
  for (const size_t count : {1, 17, 5000, 100001}) {
    for (const int states : {1, 2, 4}) {
      std::atomic<size_t> updated{0};
      ranks_->Each([&](int rank, Engine& engine) {
        CountingStates own(count, states);
        // More than twice, so that the ranks come to expect it.
        for (int step = 0; step < 5; ++step) {
          const std::vector<double> gradient = Gradient(rank, count, step);
          const std::vector<double> kept = gradient;
          const std::string name = "w" + std::to_string(count) + "/" + std::to_string(states);
          Ending ending = Submit(engine, MakeUpdate(name, gradient, &own));
          const Status status = Await(ending);
          EXPECT_TRUE(status.ok()) << status.message();
          EXPECT_EQ(Check(own, AllRanks(ranks_->size()), step), "") << name << " step " << step;
          EXPECT_EQ(gradient, kept);
          EXPECT_EQ(own.begun(), step + 1);
          EXPECT_EQ(own.ended(), step + 1);
          own.Next();
        }
        updated += own.updated();
      });
      EXPECT_EQ(updated, divides() ? count : count * static_cast<size_t>(ranks_->size()));
    }
  }
  ranks_->JoinAll();
}

// Beside averages, which fuse with one another and not with it.
TEST_P(UpdateTest, AmongAverages) {
  ranks_->Each([&](int rank, Engine& engine) {
    CountingStates own(30000, 2);
    for (int step = 0; step < 6; ++step) {
      const std::vector<double> gradient = Gradient(rank, 30000, step);
      std::vector<Job> jobs;
      std::vector<std::vector<char>> data;
      std::vector<Ending> endings;
      for (const char* name : {"a", "b", "c"}) {
        jobs.push_back({name, DataType::kFloat64, ReduceOp::kAverage, 50, step});
        data.push_back(MakeInput(jobs.back(), rank));
      }
      for (size_t i = 0; i < jobs.size(); ++i) {
        if (i == 1) endings.push_back(Submit(engine, MakeUpdate("w", gradient, &own)));
        endings.push_back(Submit(engine, MakeRequest(jobs[i], data[i].data(), data[i].data())));
      }
      EXPECT_EQ(AwaitAll(endings), "");
      EXPECT_EQ(Check(own, AllRanks(ranks_->size()), step), "");
      for (size_t i = 0; i < jobs.size(); ++i) {
        EXPECT_EQ(CheckOutput(jobs[i], AllRanks(ranks_->size()), data[i].data()), "");
      }
      own.Next();
    }
  });
  ranks_->JoinAll();
}

// A rank that has joined owns nothing: those that are left update all.
TEST_P(UpdateTest, ARankThatHasJoinedLeavesItsShare) {
  const int size = ranks_->size();
  ranks_->Each([&](int rank, Engine& engine) {
    CountingStates own(40000, 2);
    for (int step = 0; step <= rank; ++step) {
      std::vector<int> contributors;
      for (int r = step; r < size; ++r) contributors.push_back(r);
      const std::vector<double> gradient = Gradient(rank, 40000, step);
      Ending ending = Submit(engine, MakeUpdate("w", gradient, &own));
      EXPECT_TRUE(Await(ending).ok());
      EXPECT_EQ(Check(own, contributors, step), "") << "step " << step;
      own.Next();
    }
    EXPECT_TRUE(engine.Join().ok());
  });
}

TEST_P(UpdateTest, NothingIsAnUpdateToo) {
  ranks_->Each([&](int, Engine& engine) {
    CountingStates own(0, 1);
    const std::vector<double> gradient;
    Ending ending = Submit(engine, MakeUpdate("w", gradient, &own));
    EXPECT_TRUE(Await(ending).ok());
  });
  ranks_->JoinAll();
}

class UpdatesTest : public TimedTest {};

// As where one rank's script has another optimizer, or another way to update.
TEST_F(UpdatesTest, RanksThatDisagreeHearOfBoth) {
  Nodes nodes(1, 2);
  Ranks ranks(2, TestOptions(), nodes.Decorator());
  ranks.Each([&](int rank, Engine& engine) {
    CountingStates own(100, 1 + rank);
    std::vector<double> gradient(100);
    Ending states = Submit(engine, MakeUpdate("w", gradient, &own));
    const Status status = Await(states);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_NE(status.message().find("rank 0 has update of float64 [100] and 1"), std::string::npos)
        << status.message();
    EXPECT_EQ(own.begun(), 0);

    Request request = MakeUpdate("v", gradient, &own);
    if (rank == 1) {
      request.signature = {OpKind::kAllreduce, ReduceOp::kAverage, DataType::kFloat64, 0, {100}};
      request.output = gradient.data();
    }
    Ending kinds = Submit(engine, std::move(request));
    const std::string message = Await(kinds).message();
    EXPECT_NE(message.find("update"), std::string::npos) << message;
    EXPECT_NE(message.find("allreduce average"), std::string::npos) << message;
  });
  ranks.JoinAll();
}

TEST_F(UpdatesTest, OnlyWhatIsReducedWhereItLies) {
  Ranks ranks(1);
  CountingStates own(4, 1);
  const std::vector<double> gradient(4);
  for (const DataType type : {DataType::kFloat16, DataType::kInt32, DataType::kComplex64}) {
    Request request = MakeUpdate("w", gradient, &own);
    request.signature.dtype = type;
    Ending ending = Submit(ranks[0], std::move(request));
    EXPECT_EQ(Await(ending).code(), Code::kInvalidArgument) << Name(type);
  }
  Request request = MakeUpdate("w", gradient, &own);
  request.signature.states = 0;
  Ending ending = Submit(ranks[0], std::move(request));
  EXPECT_EQ(Await(ending).code(), Code::kInvalidArgument);
  ranks.JoinAll();
}

// No memory for the new values: the step fails elsewhere, and nobody waits here.
class NoMemory : public CountingStates {
 public:
  using CountingStates::CountingStates;
  std::vector<char*> Begin() override {
    CountingStates::Begin();
    return std::vector<char*>(after().size(), nullptr);
  }
};

TEST_F(UpdatesTest, ARankWithoutMemoryTakesPart) {
  Nodes nodes(1, 2);
  Ranks ranks(2, TestOptions(), nodes.Decorator());
  ranks.Each([&](int rank, Engine& engine) {
    CountingStates good(50000, 2);
    NoMemory bad(50000, 2);
    const std::vector<double> gradient(50000, 1);
    Ending ending = Submit(engine, MakeUpdate("w", gradient, rank == 0 ? &good : &bad));
    EXPECT_TRUE(Await(ending).ok());
    EXPECT_EQ(good.after()[0][0], rank == 0 ? -1 + CountingStates::Start(0, 0) : -1);
  });
  ranks.JoinAll();
}

}  // namespace
}  // namespace tfmpi
