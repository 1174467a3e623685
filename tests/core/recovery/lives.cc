#include "tests/core/recovery/lives.h"

#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "tests/core/recovery/mortal_group.h"

namespace tfmpi {
namespace {

using std::chrono::milliseconds;

enum class Kind { kAverage, kWeighted, kSum, kRows, kBroadcast, kBarrier };

struct Call {
  Kind kind;
  int step;
  std::string name;
  std::vector<double> data;  // its input, then its result
  std::vector<double> rows;
  int done = 0;
  Status status;
};

class Lives {
 public:
  explicit Lives(uint64_t seed)
      : random_(seed), ranks_(2 + Below(3)), steps_(2 + Below(6)), world_(MakeOptions()) {
    mortal_ = std::make_unique<MortalWorld>(
        &world_, ranks_, [this](int ways) { return Below(ways); },
        milliseconds(Below(2) == 0 ? 0 : 30));
    const int deaths = 1 + Below(ranks_ - 1);
    for (int i = 0; i < deaths; ++i) doom_[Below(ranks_)] = 1 + Below(i == 0 ? 100 : 160);
    if (static_cast<int>(doom_.size()) == ranks_) doom_.erase(doom_.begin());
    for (int i = 0; i < 3 + Below(4); ++i) kinds_.push_back(static_cast<Kind>(Below(6)));
    calls_.resize(static_cast<size_t>(ranks_));
    joined_.resize(static_cast<size_t>(ranks_));
    posted_.resize(static_cast<size_t>(ranks_));
    for (int rank = 0; rank < ranks_; ++rank) {
      EngineOptions options;
      options.shrink_on_fault = true;
      options.collective_timeout = std::chrono::seconds(20);
      options.start_loop = world_.StartLoop(rank);
      options.log = [this](const std::string& line) {
        passed_on_ += line.find(" completed from other ranks' history") != std::string::npos &&
                      line.find("(0 operations were ") == std::string::npos;
      };
      engines_.push_back(std::make_unique<Engine>(mortal_->CreateTransport(rank), options));
    }
    for (int rank = 0; rank < ranks_; ++rank) {
      world_.AddScript(rank, [this, rank] { Script(rank); });
    }
  }

  ~Lives() {
    world_.Abandon();
    engines_.clear();
  }

  LivesResult Run() {
    LivesResult outcome;
    outcome.wrong = world_.Run();
    for (int rank = 0; rank < ranks_; ++rank) outcome.deaths += world_.killed(rank);
    outcome.passed_on = passed_on_;
    outcome.groups = static_cast<int>(mortal_->groups().size()) - 1;
    if (outcome.wrong.empty()) outcome.wrong = mortal_->violation();
    if (outcome.wrong.empty()) outcome.wrong = Judge(&outcome.redone);
    return outcome;
  }

 private:
  int Below(int bound) { return static_cast<int>(random_() % static_cast<uint64_t>(bound)); }

  SimulationOptions MakeOptions() {
    SimulationOptions options;
    options.ranks = ranks_;
    options.shared_word = false;
    options.choose = [this](int ways) { return Below(ways); };
    options.on_turn = [this](int rank) {
      const auto fate = doom_.find(rank);
      if (fate == doom_.end() || world_.killed(rank) || --fate->second > 0) return;
      mortal_->Kill(rank);
    };
    return options;
  }

  // Identifies the rank and the step.
  static double Value(int rank, int step) { return std::pow(10.0, rank) * (1 + step); }
  double Weight(int rank) const {
    double all = 0;
    for (int r = 0; r < ranks_; ++r) all += 1 + r;
    return ranks_ * (1 + rank) / all;
  }

  void Script(int rank) {
    Engine& engine = *engines_[static_cast<size_t>(rank)];
    std::vector<std::unique_ptr<Call>>& mine = calls_[static_cast<size_t>(rank)];
    for (int step = 0; step < steps_; ++step) {
      std::vector<size_t> order;
      for (size_t i = 0; i < kinds_.size(); ++i) order.push_back(i);
      for (size_t i = order.size(); i > 1; --i) {
        std::swap(order[i - 1], order[static_cast<size_t>(Below(static_cast<int>(i)))]);
      }
      const size_t before = mine.size();
      for (const size_t i : order) {
        mine.push_back(std::make_unique<Call>());
        Ask(&engine, rank, step, i, mine.back().get());
        if (Below(3) == 0) world_.Point();
      }
      world_.WaitUntil([&mine, before] {
        for (size_t i = before; i < mine.size(); ++i) {
          if (mine[i]->done == 0) return false;
        }
        return true;
      });
      if (engine.topology().rank == 0) engine.Post("step");
    }
    joined_[static_cast<size_t>(rank)] = engine.Join();
    posted_[static_cast<size_t>(rank)] = engine.published().Posted("step");
  }

  void Ask(Engine* engine, int rank, int step, size_t which, Call* call) {
    call->kind = kinds_[which];
    call->step = step;
    call->name = "t" + std::to_string(which);
    // In place. Some have two elements, so that fusion differs.
    call->data.assign(1 + which % 2, Value(rank, step));
    Request request;
    request.name = call->name;
    request.signature.dtype = DataType::kFloat64;
    request.signature.shape = {static_cast<int64_t>(call->data.size())};
    request.input = request.output = call->data.data();
    if (call->kind == Kind::kSum) request.signature.op = ReduceOp::kSum;
    if (call->kind == Kind::kWeighted) {
      request.signature.weighted = true;
      request.scale = Weight(rank);
    }
    if (call->kind == Kind::kRows) {
      request.signature.kind = OpKind::kAllgather;
      request.allocate = [call](const std::vector<int64_t>& rows) -> void* {
        int64_t total = 0;
        for (const int64_t n : rows) total += n;
        call->rows.resize(static_cast<size_t>(total));
        return call->rows.data();
      };
    }
    if (call->kind == Kind::kBroadcast) {
      request.signature.kind = OpKind::kBroadcast;
      request.generation = engine->published().generation();
      if (engine->topology().rank != 0) call->data.assign(call->data.size(), -1);
    }
    if (call->kind == Kind::kBarrier) {
      request.signature.kind = OpKind::kBarrier;
      request.signature.shape = {0};
    }
    request.done = [call](const Status& status) {
      ++call->done;
      call->status = status;
    };
    engine->Submit(std::move(request));
  }

  std::string Judge(int* redone) {
    int first = -1;
    for (int rank = ranks_ - 1; rank >= 0; --rank) {
      if (!world_.killed(rank)) first = rank;
    }
    for (int rank = 0; rank < ranks_; ++rank) {
      if (world_.killed(rank)) continue;
      const std::string who = "rank " + std::to_string(rank);
      const auto i = static_cast<size_t>(rank);
      const bool orphaned =
          joined_[i].message().find("had the data for the others") != std::string::npos;
      const bool alike = orphaned == !joined_[static_cast<size_t>(first)].ok();
      const bool several = joined_[i].message().find(" have died") != std::string::npos;
      if (several && joined_[i].message().find("only it") != std::string::npos) {
        return who + " means one of several: " + joined_[i].message();
      }
      if (orphaned && alike) continue;
      if (!joined_[i].ok()) return who + ": " + joined_[i].message();
      if (posted_[i] != posted_[static_cast<size_t>(first)]) return who + " has other posts";
      if (calls_[i].size() != kinds_.size() * static_cast<size_t>(steps_)) return who + " stopped";
      for (const auto& call : calls_[i]) {
        const std::string wrong = JudgeCall(*call, first);
        if (!wrong.empty()) {
          return who + ", " + call->name + " of step " + std::to_string(call->step) + ": " + wrong;
        }
        *redone += call->kind == Kind::kAverage && !IsOf(*call, mortal_->groups().front());
      }
    }
    return "";
  }

  std::string JudgeCall(const Call& call, int first) const {
    if (call.done != 1) return "has ended " + std::to_string(call.done) + " times";
    const Call* other = nullptr;
    for (const auto& one : calls_[static_cast<size_t>(first)]) {
      if (one->name == call.name && one->step == call.step) other = one.get();
    }
    if (other == nullptr) return "nobody else has it";
    // A broadcast whose root has died ends in the same way on all ranks.
    const bool by_death = call.kind == Kind::kBroadcast && call.status.code() == Code::kUnavailable;
    if (by_death) return other->status.code() == Code::kUnavailable ? "" : "has failed here only";
    if (!call.status.ok()) return call.status.message();
    if (call.kind == Kind::kBroadcast) {
      return IsOfAnyRank(call) && call.data == other->data ? "" : "is no rank's";
    }
    if (call.kind == Kind::kBarrier) return "";
    const bool alike =
        call.kind == Kind::kRows ? call.rows == other->rows : call.data == other->data;
    if (!alike) return "differs";
    for (const auto& group : mortal_->groups()) {
      if (IsOf(call, group)) return "";
    }
    return "is no group's: " + std::to_string(call.data.front());
  }

  bool IsOfAnyRank(const Call& call) const {
    for (int rank = 0; rank < ranks_; ++rank) {
      if (call.data.front() == Value(rank, call.step)) return true;
    }
    return false;
  }

  bool IsOf(const Call& call, const std::vector<int>& group) const {
    double sum = 0, weights = 0;
    std::vector<double> rows;
    for (const int rank : group) {
      const double weight = call.kind == Kind::kWeighted ? Weight(rank) : 1;
      sum += weight * Value(rank, call.step);
      weights += weight;
      rows.insert(rows.end(), call.data.size(), Value(rank, call.step));
    }
    if (call.kind == Kind::kRows) return call.rows == rows;
    if (call.kind != Kind::kSum) sum /= weights;
    for (const double element : call.data) {
      if (std::abs(element - sum) > 1e-9 * sum) return false;
    }
    return true;
  }

  std::mt19937_64 random_;
  const int ranks_;
  const int steps_;
  std::map<int, int> doom_;  // by rank: the turns until it dies
  std::vector<Kind> kinds_;
  Simulation world_;
  std::unique_ptr<MortalWorld> mortal_;
  std::vector<std::vector<std::unique_ptr<Call>>> calls_;
  std::vector<Status> joined_;
  std::vector<int64_t> posted_;
  int passed_on_ = 0;
  std::vector<std::unique_ptr<Engine>> engines_;
};

}  // namespace

LivesResult RunLives(uint64_t seed) { return Lives(seed).Run(); }

}  // namespace tfmpi
