#include <algorithm>
#include <unordered_set>

#include "tests/core/explore/agreement_model.h"
#include "tests/core/simulation/inspector.h"

namespace tfmpi {
namespace {

uint64_t HashOf(const std::string& text) { return std::hash<std::string>()(text); }

class Search {
 public:
  explicit Search(uint64_t most_states) : most_states_(most_states) {}

  // False: something is wrong, or there are too many states.
  bool From(const AgreementModel& model) {
    const std::vector<AgreementModel::Action> actions = model.Actions();
    found_.wrong = model.Wrong(actions.empty());
    if (!found_.wrong.empty()) return false;
    for (const AgreementModel::Action& action : actions) {
      AgreementModel next(model);
      next.Take(action);
      ++found_.transitions;
      if (!states_.insert(next.State()).second && next.Wrong(false).empty()) continue;
      if (states_.size() >= most_states_) return false;
      if (From(next)) continue;
      if (!found_.wrong.empty()) found_.way.push_back(model.Describe(action));
      return false;
    }
    return true;
  }

  AgreementExploration found(bool complete) {
    found_.states = states_.size();
    found_.complete = complete;
    std::reverse(found_.way.begin(), found_.way.end());
    return found_;
  }

 private:
  const uint64_t most_states_;
  std::unordered_set<uint64_t> states_;
  AgreementExploration found_;
};

}  // namespace

std::vector<AgreementModel::Action> AgreementModel::Actions() const {
  std::vector<Action> actions;
  for (int r = 0; r < ranks(); ++r) {
    const Rank& rank = ranks_[r];
    if (!rank.tasks.empty()) {  // it is in a collective
      if (scenario_->enqueues || AllArrived(r)) actions.push_back({Kind::kReturn, r});
      continue;
    }
    if (rank.finished) continue;
    const bool coordinates = r == 0 && news_;  // and does nothing else before it has decided
    const bool unsaid = !rank.ready_list.empty();
    if (!coordinates && !rank.joined && !(scenario_->told_singly && unsaid && !rank.voted)) {
      for (int tensor = 0; tensor < scenario_->tensors; ++tensor) {
        if ((rank.to_ask >> tensor & 1) == 0) continue;
        actions.push_back({Kind::kAsk, r, tensor});
        // Tensors are interchangeable, so one order of rank 0 stands for all.
        if (r == 0 && !scenario_->differs) break;
      }
      if (MayJoin(r)) actions.push_back({Kind::kJoin, r});
    }
    if (scenario_->withdraws && r == 1 && !rank.withdrew) {
      for (int tensor = 0; tensor < scenario_->tensors; ++tensor) {
        if (rank.entries[tensor].pending) actions.push_back({Kind::kWithdraw, r, tensor});
      }
    }
    if (!coordinates && unsaid) actions.push_back({Kind::kSay, r});
    if (r != 0 && !from_coordinator_[r].empty()) actions.push_back({Kind::kReceive, r});
    for (int from = 1; r == 0 && from < ranks(); ++from) {
      if (!to_coordinator_[from].empty()) actions.push_back({Kind::kReceive, 0, from});
    }
    if (coordinates) actions.push_back({Kind::kDecide, r});
  }
  return actions;
}

std::string AgreementModel::Describe(const Action& action) const {
  const std::string who = "rank " + std::to_string(action.rank);
  switch (action.kind) {
    case Kind::kAsk:
      return who + " asks for '" + NameOf(action.what) + "'";
    case Kind::kWithdraw:
      return who + " takes '" + NameOf(action.what) + "' back";
    case Kind::kJoin:
      return who + " has ended its script";
    case Kind::kSay:
      return who + " says what it has";
    case Kind::kReceive:
      return action.rank == 0 ? "rank 0 hears rank " + std::to_string(action.what)
                              : who + " hears rank 0";
    case Kind::kDecide:
      return "rank 0 decides";
    case Kind::kReturn:
      return who + " goes on after a collective";
  }
  return "";
}

uint64_t AgreementModel::State() const {
  uint64_t hash = Mix(Inspector::StateOf(coordinator_), word_.value.load());
  hash = Mix(hash, news_);
  size_t known_to_all = agreed_.size();
  for (int r = 0; r < ranks(); ++r) {
    const Rank& rank = ranks_[r];
    ReadyList ready_list = rank.ready_list;
    std::sort(ready_list.ready.begin(), ready_list.ready.end());  // as when it is sent
    std::sort(ready_list.requests.begin(), ready_list.requests.end(),
              [](const auto& one, const auto& other) { return one.name < other.name; });
    hash = Mix(hash, HashOf(Encode(ready_list)));
    for (const uint64_t number : {uint64_t(rank.round), uint64_t(rank.to_ask), rank.position,
                                  uint64_t(rank.by_id.size()), uint64_t(rank.agreed)}) {
      hash = Mix(hash, number);
    }
    for (const bool flag : {rank.expects, rank.voted, rank.withdrew, rank.joined, rank.finished}) {
      hash = Mix(hash, flag);
    }
    for (const Entry& entry : rank.entries) {
      hash = Mix(hash, static_cast<uint64_t>(entry.number) * 64 +
                           static_cast<uint64_t>(entry.early_errors) * 8 + entry.pending +
                           entry.outstanding * 2 + entry.other_shape * 4);
    }
    for (const auto* way : {&to_coordinator_[r], &from_coordinator_[r]}) {
      hash = Mix(hash, way->size());
      for (const std::string& bytes : *way) hash = Mix(hash, HashOf(bytes));
    }
    hash = Mix(hash, rank.arrived);
    for (const Task& task : rank.tasks) {
      hash = Mix(hash, static_cast<uint64_t>(task.kind) * 1024 + task.at * 64 +
                           static_cast<uint64_t>(task.tensor) * 2 + task.arrived);
      hash = Mix(hash, HashOf(Encode(task.response_list)));
    }
    known_to_all = std::min(known_to_all, rank.agreed);
  }
  for (size_t i = known_to_all; i < agreed_.size(); ++i) {
    hash = Mix(hash, static_cast<uint64_t>(agreed_[i].tensor * 8 + agreed_[i].contributors));
    for (const int number : agreed_[i].numbers) hash = Mix(hash, static_cast<uint64_t>(number));
  }
  return hash;
}

AgreementExploration ExploreAgreement(const AgreementScenario& scenario, uint64_t most_states) {
  Search search(most_states);
  const bool complete = search.From(AgreementModel(&scenario));
  return search.found(complete);
}

}  // namespace tfmpi
