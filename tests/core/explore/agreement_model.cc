#include "tests/core/explore/agreement_model.h"

#include <algorithm>
#include <utility>

namespace tfmpi {
namespace {

const TimePoint kNow = TimePoint() + std::chrono::hours(1);  // time does not pass

}  // namespace

AgreementModel::AgreementModel(const AgreementScenario* scenario)
    : scenario_(scenario), coordinator_(scenario->ranks, CoordinatorOptions(), kNow) {
  if (scenario->votes) {  // names have numbers, as after a round
    for (int r = 0; r < ranks(); ++r) {
      ReadyList ready_list;
      for (int tensor = 0; tensor < scenario->tensors; ++tensor) {
        ready_list.requests.push_back(NamedOf({tensor, false}));
      }
      coordinator_.Receive(r, ready_list, kNow);
    }
    coordinator_.Decide(kNow);
    coordinator_.TakeNotices();
  }
  for (int r = 0; r < ranks(); ++r) {
    Rank& rank = ranks_[r];
    rank.to_ask = all();
    rank.expects = scenario->votes;
    for (int tensor = 0; scenario->votes && tensor < scenario->tensors; ++tensor) {
      rank.by_id.push_back({tensor, false});
    }
  }
}

NamedSignature AgreementModel::NamedOf(const Named& named) {
  NamedSignature result;
  result.name = NameOf(named.tensor);
  result.signature.kind = OpKind::kAllreduce;
  result.signature.op = ReduceOp::kSum;
  result.signature.dtype = DataType::kInt64;
  result.signature.shape = {named.other_shape ? 2 : 1};
  return result;
}

bool AgreementModel::NothingPending(const Rank& rank) const {
  return std::none_of(rank.entries.begin(), rank.entries.end(),
                      [](const Entry& entry) { return entry.pending; });
}

bool AgreementModel::MayJoin(int r) const {
  const Rank& rank = ranks_[r];
  if (rank.joined || !NothingPending(rank)) return false;
  if (rank.round == scenario_->rounds) return true;
  return scenario_->ends_early && r == ranks() - 1 && rank.round + 1 == scenario_->rounds;
}

// Like ResponsePredictor::Fits, with all tensors expected.
bool AgreementModel::Fits(const Rank& rank) const {
  const ReadyList& said = rank.ready_list;
  if (!rank.expects || !said.requests.empty() || !said.withdrawn.empty() || said.joined) {
    return false;
  }
  return said.ready.size() == static_cast<size_t>(scenario_->tensors);
}

// Collectives of the hosts return on no rank before all have reached them.
bool AgreementModel::AllArrived(int r) const {
  return std::all_of(ranks_.begin(), ranks_.begin() + ranks(),
                     [&](const Rank& other) { return other.arrived >= ranks_[r].arrived; });
}

void AgreementModel::Take(const Action& action) {
  Rank& rank = ranks_[action.rank];
  switch (action.kind) {
    case Kind::kAsk:
      Ask(action.rank, action.what);
      break;
    case Kind::kWithdraw:
      rank.withdrew = true;
      rank.ready_list.withdrawn.push_back(NameOf(action.what));
      break;
    case Kind::kJoin:
      rank.joined = rank.ready_list.joined = true;
      break;
    case Kind::kSay:
      Say(action.rank);
      break;
    case Kind::kReceive: {
      std::deque<std::string>& way =
          action.rank == 0 ? to_coordinator_[action.what] : from_coordinator_[action.rank];
      const std::string bytes = std::exchange(way.front(), "");
      way.pop_front();
      ReadyList ready_list;
      ResponseList response_list;
      if (action.rank == 0) {
        if (!Decode(bytes, &ready_list)) Blame("a ready list cannot be read");
        coordinator_.Receive(action.what, ready_list, kNow);
        news_ = true;
      } else {
        if (!Decode(bytes, &response_list)) Blame("a response list cannot be read");
        Hear(action.rank, response_list);
      }
      break;
    }
    case Kind::kDecide:
      Decide();
      break;
    case Kind::kReturn:
      break;
  }
  Work(action.rank);
}

// Until all tasks are done, or it waits in a collective.
void AgreementModel::Work(int r) {
  std::vector<Task>& tasks = ranks_[r].tasks;
  while (!tasks.empty() && wrong_.empty()) {
    Task task = std::move(tasks.back());
    tasks.pop_back();
    if (!Do(r, std::move(task))) return;
  }
}

// Returns false if it waits.
bool AgreementModel::Do(int r, Task task) {
  switch (task.kind) {
    case Task::Kind::kTell:
      Tell(r);
      return true;
    case Task::Kind::kPredicted:
      BeginPredicted(r);
      return true;
    case Task::Kind::kExecute:
      return Execute(r, std::move(task));
    case Task::Kind::kFail:
      if (ranks_[r].entries[task.tensor].pending) Complete(r, task.tensor, Ending::kError);
      return true;
    case Task::Kind::kHear:
      BeginHeard(r, task.response_list);
      return true;
    case Task::Kind::kSendDecision: {
      task.response_list.position = ranks_[0].position;
      const std::string bytes = Encode(task.response_list);
      for (int other = 1; other < ranks(); ++other) from_coordinator_[other].push_back(bytes);
      Hear(0, task.response_list);
      return true;
    }
    case Task::Kind::kEnd:
      EndAfterWithdrawals(r, task.response_list);
      return true;
    case Task::Kind::kRejectTold:
      RejectOutstanding(r);
      return true;
  }
  return true;
}

void AgreementModel::Ask(int r, int tensor) {
  Rank& rank = ranks_[r];
  Entry& entry = rank.entries[tensor];
  rank.to_ask &= ~(1u << tensor);
  entry.pending = true;
  entry.other_shape = scenario_->differs && r == ranks() - 1 && tensor == 0 && entry.number == 0;
  ++entry.number;
  const auto known = std::find_if(rank.by_id.begin(), rank.by_id.end(), [&](const Named& named) {
    return named.tensor == tensor && named.other_shape == entry.other_shape;
  });
  if (known != rank.by_id.end()) {
    rank.ready_list.ready.push_back(static_cast<NameId>(known - rank.by_id.begin()));
  } else {
    rank.ready_list.requests.push_back(NamedOf({tensor, entry.other_shape}));
  }
  if (entry.early_errors == 0) return;
  --entry.early_errors;
  Begin(r, {Task::Kind::kFail, tensor, {}});
  Begin(r, {Task::Kind::kTell, 0, {}});
}

// A rank that has voted may lose its patience at any time.
void AgreementModel::Say(int r) {
  Rank& rank = ranks_[r];
  if (rank.voted || !Fits(rank)) return Vote(r);
  const Outcome outcome = Votes().Vote(rank.position);
  rank.voted = outcome == Outcome::kOpen;
  if (outcome == Outcome::kCommitted) Begin(r, {Task::Kind::kPredicted, 0, {}});
  if (outcome == Outcome::kRejected) Tell(r);
}

// Ends a vote, if there is one, and tells the coordinator whatever was not committed.
void AgreementModel::Vote(int r) {
  Rank& rank = ranks_[r];
  bool rejected_votes = false;
  if (rank.voted && Votes().Reject(rank.position, &rejected_votes) == Outcome::kCommitted) {
    return Begin(r, {Task::Kind::kPredicted, 0, {}});
  }
  rank.voted = false;
  Tell(r);
}

void AgreementModel::Tell(int r) {
  Rank& rank = ranks_[r];
  bool rejected_votes = false;
  if (Votes().Reject(rank.position, &rejected_votes) == Outcome::kCommitted) {
    Begin(r, {Task::Kind::kTell, 0, {}});
    return Begin(r, {Task::Kind::kPredicted, 0, {}});
  }
  rank.voted = false;
  if (!rank.ready_list.empty()) SendReadyList(r);
}

void AgreementModel::SendReadyList(int r) {
  Rank& rank = ranks_[r];
  ReadyList ready_list = std::exchange(rank.ready_list, ReadyList());
  std::sort(ready_list.ready.begin(), ready_list.ready.end());
  for (const NameId id : ready_list.ready) rank.entries[rank.by_id[id].tensor].outstanding = true;
  for (const NamedSignature& named : ready_list.requests) {
    rank.entries[TensorOf(named.name)].outstanding = true;
  }
  if (r != 0) {
    to_coordinator_[r].push_back(Encode(ready_list));
    return;
  }
  coordinator_.Receive(0, ready_list, kNow);
  news_ = true;
}

void AgreementModel::Decide() {
  const ResponseList response_list = coordinator_.Decide(kNow);
  coordinator_.TakeNotices();
  news_ = false;
  if (response_list.empty()) return;
  Begin(0, {Task::Kind::kSendDecision, 0, response_list});
  if (!response_list.responses.empty()) Begin(0, {Task::Kind::kTell, 0, {}});
}

void AgreementModel::Hear(int r, const ResponseList& response_list) {
  Begin(r, {Task::Kind::kHear, 0, response_list});
  if (ranks_[r].voted && !response_list.responses.empty()) Begin(r, {Task::Kind::kTell, 0, {}});
}

void AgreementModel::BeginHeard(int r, const ResponseList& response_list) {
  Rank& rank = ranks_[r];
  if (!response_list.responses.empty()) {
    if (response_list.position != rank.position) {
      Blame("rank " + std::to_string(r) + " is told of another agreement than its next");
    }
    ++rank.position;
    size_t items = 0;
    bool same = scenario_->votes && response_list.errors.empty() &&
                response_list.withdrawn.empty() && !response_list.finished;
    for (const Response& response : response_list.responses) {
      same &= response.contributors == ranks();
      items += response.items.size();
      for (const ResponseItem& item : response.items) same &= !item.is_new;
    }
    rank.expects = same && items == static_cast<size_t>(scenario_->tensors);
    Begin(r, {Task::Kind::kRejectTold, 0, {}});
  }
  Begin(r, {Task::Kind::kExecute, 0, response_list});
}

void AgreementModel::BeginPredicted(int r) {
  Rank& rank = ranks_[r];
  rank.ready_list.ready.clear();  // all of it was expected
  rank.voted = false;
  ++rank.position;
  ResponseList response_list;
  response_list.responses.resize(1);
  response_list.responses[0].contributors = ranks();
  for (int tensor = 0; tensor < scenario_->tensors; ++tensor) {
    ResponseItem item;
    item.id = static_cast<NameId>(tensor);
    response_list.responses[0].items.push_back(item);
  }
  Begin(r, {Task::Kind::kRejectTold, 0, {}});
  Begin(r, {Task::Kind::kExecute, 0, response_list});
}

void AgreementModel::RejectOutstanding(int r) {
  const Rank& rank = ranks_[r];
  const bool outstanding = std::any_of(rank.entries.begin(), rank.entries.end(),
                                       [](const Entry& entry) { return entry.outstanding; });
  bool rejected_votes = false;
  if (rank.expects && outstanding) Votes().Reject(rank.position, &rejected_votes);
}

// Returns false if it waits in the collective of its next response.
bool AgreementModel::Execute(int r, Task task) {
  Rank& rank = ranks_[r];
  if (task.at == task.response_list.responses.size()) {
    End(r, task.response_list);
    return true;
  }
  if (!task.arrived) {
    task.arrived = true;
    ++rank.arrived;
    Begin(r, std::move(task));
    return false;
  }
  const Response& response = task.response_list.responses[task.at];
  for (const ResponseItem& item : response.items) Agree(r, response, item);
  ++task.at;
  task.arrived = false;
  Begin(r, std::move(task));
  return true;
}

void AgreementModel::End(int r, const ResponseList& response_list) {
  Rank& rank = ranks_[r];
  for (const Withdrawal& withdrawal : response_list.withdrawn) {
    const int tensor = TensorOf(withdrawal.name);
    if (withdrawal.rank == r && rank.entries[tensor].pending) {
      Complete(r, tensor, Ending::kCancelled);
    }
  }
  Begin(r, {Task::Kind::kEnd, 0, response_list});
  const bool unsaid = !response_list.errors.empty() && !rank.ready_list.empty();
  if (unsaid) Begin(r, {Task::Kind::kTell, 0, {}});
}

void AgreementModel::EndAfterWithdrawals(int r, const ResponseList& response_list) {
  Rank& rank = ranks_[r];
  for (const NamedError& error : response_list.errors) {
    const int tensor = TensorOf(error.name);
    if (rank.entries[tensor].pending) {
      Complete(r, tensor, Ending::kError);
    } else if (!rank.joined) {
      ++rank.entries[tensor].early_errors;
    }
  }
  if (!response_list.fatal.empty()) Blame("an end: " + response_list.fatal);
  if (response_list.finished) rank.finished = true;
}

// Like Executor::Resolve; also records which requests match.
void AgreementModel::Agree(int r, const Response& response, const ResponseItem& item) {
  Rank& rank = ranks_[r];
  if (item.is_new) {
    if (item.id != rank.by_id.size()) return Blame("numbers are not in order");
    rank.by_id.push_back({TensorOf(item.named.name),
                          item.named.signature.shape != NamedOf({0, false}).signature.shape});
  }
  if (item.id >= rank.by_id.size()) return Blame("nobody knows this number");
  const Named named = rank.by_id[item.id];
  Entry& entry = rank.entries[named.tensor];
  const std::string who =
      "rank " + std::to_string(r) + " is told to reduce '" + NameOf(named.tensor) + "'";
  if (!entry.pending && (!rank.joined || response.contributors == ranks())) {
    return Blame(who + ", for which it has not asked");
  }
  if (entry.pending && entry.other_shape != named.other_shape) {
    return Blame(who + " of another shape");
  }
  if (rank.agreed == agreed_.size()) {
    agreed_.push_back({named.tensor, response.contributors, {-1, -1, -1}});
  }
  Agreed& agreed = agreed_[rank.agreed++];
  agreed.numbers[r] = entry.pending ? entry.number : 0;
  if (agreed.tensor != named.tensor || agreed.contributors != response.contributors) {
    return Blame(who + " where another rank does something else");
  }
  int known = 0, with = 0;
  for (int other = 0; other < ranks(); ++other) {
    const int number = agreed.numbers[other];
    known += number >= 0;
    with += number > 0;
    if (number > 0 && entry.pending && number != entry.number) {
      Blame(who + ", its request " + std::to_string(entry.number) + " with request " +
            std::to_string(number) + " of rank " + std::to_string(other));
    }
  }
  if (known == ranks() && with != agreed.contributors) Blame(who + " of a wrong number of ranks");
  if (entry.pending) Complete(r, named.tensor, Ending::kWell);
}

void AgreementModel::Complete(int r, int tensor, Ending ending) {
  Rank& rank = ranks_[r];
  Entry& entry = rank.entries[tensor];
  const bool must_fail = scenario_->differs && tensor == 0 && entry.number == 1;
  if (ending != Ending::kCancelled && must_fail != (ending == Ending::kError)) {
    Blame("rank " + std::to_string(r) + "'s '" + NameOf(tensor) + "' number " +
          std::to_string(entry.number) + " ends " + (must_fail ? "well" : "with an error"));
  }
  entry.pending = entry.outstanding = false;
  std::vector<std::string>& withdrawn = rank.ready_list.withdrawn;
  withdrawn.erase(std::remove(withdrawn.begin(), withdrawn.end(), NameOf(tensor)), withdrawn.end());
  if (ending == Ending::kCancelled) --entry.number;
  if (ending != Ending::kWell) rank.to_ask |= 1u << tensor;  // once more
  GoOn(r);
}

void AgreementModel::GoOn(int r) {
  Rank& rank = ranks_[r];
  if (rank.to_ask != 0 || !NothingPending(rank)) return;
  if (++rank.round < scenario_->rounds) rank.to_ask = all();
}

std::string AgreementModel::Wrong(bool ends) const {
  if (!wrong_.empty() || !ends) return wrong_;
  for (int r = 0; r < ranks(); ++r) {
    if (!ranks_[r].finished) return "nobody can go on, and rank " + std::to_string(r) + " waits";
    if (!from_coordinator_[r].empty() || !to_coordinator_[r].empty()) {
      return "a message to or from rank " + std::to_string(r) + " is left";
    }
  }
  return "";
}

}  // namespace tfmpi
