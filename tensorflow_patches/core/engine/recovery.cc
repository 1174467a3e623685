#include "tensorflow_patches/core/engine/recovery.h"

#include <algorithm>
#include <utility>

#include "tensorflow_patches/core/transport/membership.h"
#include "tensorflow_patches/core/transport/roll_call.h"

namespace tfmpi {

void Recovery::CheckForDeaths() {
  constexpr std::chrono::milliseconds kBetweenLooks{2};  // each look calls MPI
  if (!state_->ok() || state_->now < checked_for_deaths_ + kBetweenLooks) return;
  checked_for_deaths_ = state_->now;
  if (parts_.transport->membership()->HasFailedRank()) {
    state_->Fail(Status(Code::kUnavailable, "a rank has died"));
  }
}

Status Recovery::MapToCurrentGroup(Request* request) {
  Signature& signature = request->signature;
  if (signature.on_gpu) {
    return Status(Code::kFailedPrecondition,
                  "'" + request->name +
                      "' is on a GPU, and TF_MPI_FAULT=shrink supports host memory only; set "
                      "TF_MPI_FAULT=abort");
  }
  if (signature.kind != OpKind::kBroadcast) return Status();
  for (uint64_t group = request->generation; group < next_ranks_.size(); ++group) {
    const std::vector<int>& next = next_ranks_[group];
    const auto root = static_cast<size_t>(signature.root);
    if (root >= next.size() || next[root] < 0) {
      return FailOrphanedBroadcast(request, group);
    }
    signature.root = next[root];
  }
  request->generation = next_ranks_.size();
  return Status();
}

// Ends the group: if this request failed on this rank only, this rank's next broadcast of that name
// would be matched with the others' pending one.
Status Recovery::FailOrphanedBroadcast(Request* request, uint64_t group) {
  const auto root = static_cast<size_t>(request->signature.root);
  if (!state_->ok()) {  // MakeReport tells the survivors, if they regroup; the group then ends
    request->signature.root = Request::kDeadRoot;
    return Status();
  }
  state_->FailForGood(
      Status(Code::kUnavailable, "'" + request->name + "' cannot complete: rank " +
                                     std::to_string(launch_ranks_[group][root]) + " of " +
                                     std::to_string(launch_ranks_[0].size()) +
                                     " has died, and only it had the data for the others"));
  return state_->failure;
}

bool Recovery::RegroupSurvivors() {
  if (state_->interrupted && ReceivedStopReason()) return false;
  const auto deadline = [this] { return Clock::now() + state_->options.collective_timeout; };
  Membership* membership = parts_.transport->membership();
  bool all = false;
  Status status = membership->Agree(!state_->interrupted, deadline(), &all);
  if (status.ok() && all) return true;
  state_->interrupted = true;
  state_->failure = Status(Code::kUnavailable, "a rank has died");
  for (int rounds_left = state_->size(); status.ok(); --rounds_left) {
    // Each further round means another death; with more rounds than ranks, something else fails.
    if (rounds_left < 0) status = Status(Code::kInternal, "the survivors cannot regroup");
    std::unique_ptr<Transport> next;
    if (status.ok()) status = membership->Regroup(&next);
    if (!status.ok()) break;
    Regrouping regrouping;
    const Status exchanged =
        ExchangeReports(next.get(), MakeReport(), *history_, deadline(), &regrouping);
    membership = next->membership();
    status = membership->Agree(exchanged.ok(), deadline(), &all);
    if (status.ok() && all) {
      ContinueWith(std::move(next), regrouping);
      return false;
    }
    parts_.transport->Keep(std::move(next));
  }
  state_->FailForGood(
      Status(status.code(),
             "a rank has died, and the others could not continue without it: " + status.message()));
  return false;
}

// A rank that has sent a reason for stopping was not killed, even if its process is gone. With
// shrink_on_fault every rank exchanges messages with rank 0 (ControlLinks::tree is false).
bool Recovery::ReceivedStopReason() {
  std::vector<ControlMessage> inbox;
  // The status is ignored: even after a failure, earlier messages can be read.
  parts_.transport->Receive(&inbox);
  for (const ControlMessage& sealed : inbox) {
    std::string bytes;
    parts_.messenger->Unseal(sealed, &bytes);
    ReadyList ready_list;
    ResponseList response_list;
    std::string why;
    if (state_->rank() == 0 && Decode(bytes, &ready_list) && !ready_list.leaving.empty()) {
      why = "rank " + std::to_string(sealed.source) + "/" + std::to_string(state_->size()) +
            " has stopped: " + ready_list.leaving;
    } else if (state_->rank() != 0 && Decode(bytes, &response_list)) {
      why = response_list.fatal;
    }
    if (why.empty()) continue;
    state_->FailForGood(Status(Code::kUnavailable, why));
    return true;
  }
  return false;
}

Report Recovery::MakeReport() {
  Report report;
  report.former_rank = state_->rank();
  report.done = history_->done();
  report.first = history_->deleted();
  parts_.pending->names().ForEachInOrder([&](NameTable::Entry* entry) {
    for (const Submission& submission : entry->submissions) {
      const Signature& signature = submission.request.signature;
      if (signature.kind == OpKind::kBroadcast) report.roots.push_back(signature.root);
    }
  });
  report.needs_all = state_->script_state->needs_all();
  return report;
}

std::string Recovery::DescribeDeaths(const Regrouping& regrouping) const {
  std::vector<int> dead;
  for (int rank = 0; rank < state_->size(); ++rank) {
    if (regrouping.NewRank(rank) < 0)
      dead.push_back(launch_ranks_.back()[static_cast<size_t>(rank)]);
  }
  return NameRanks(dead) + " of " + std::to_string(launch_ranks_[0].size()) +
         (dead.size() == 1 ? " has died" : " have died");
}

// Why the survivors cannot continue; "" if they can.
std::string Recovery::ReasonToStop(const Regrouping& regrouping) const {
  for (const Report& report : regrouping.reports) {
    const bool orphaned = std::any_of(report.roots.begin(), report.roots.end(),
                                      [&](int32_t root) { return regrouping.NewRank(root) < 0; });
    if (orphaned) return "only a dead rank had the data for the others";  // FailOrphanedBroadcast
    if (!report.needs_all.empty()) return report.needs_all;
  }
  return "";
}

// All survivors have the same reports and so decide the same.
void Recovery::ContinueWith(std::unique_ptr<Transport> next, const Regrouping& regrouping) {
  const std::string deaths = DescribeDeaths(regrouping);
  const std::string why_not = ReasonToStop(regrouping);
  if (!why_not.empty()) {
    state_->FailForGood(Status(Code::kUnavailable, deaths + ", and " + why_not));
    return parts_.transport->Keep(std::move(next));
  }
  const uint64_t done_before = history_->done();
  CatchUp(regrouping);
  // A replayed list ends the job, or does not match what this rank has announced.
  if (state_->given_up) return parts_.transport->Keep(std::move(next));
  AdaptPending(regrouping);
  std::vector<int> ranks;
  for (int rank = 0; rank < state_->size(); ++rank) ranks.push_back(regrouping.NewRank(rank));
  next_ranks_.push_back(std::move(ranks));
  std::vector<int> launch_ranks;
  for (const Report& report : regrouping.reports) {
    launch_ranks.push_back(launch_ranks_.back()[static_cast<size_t>(report.former_rank)]);
  }
  launch_ranks_.push_back(std::move(launch_ranks));
  parts_.transport->SwitchTo(std::move(next));
  RestartInNewGroup();
  if (state_->rank() != 0 || !state_->options.log) return;
  const size_t survivors = regrouping.reports.size();
  const uint64_t repeated = regrouping.most_done - regrouping.least_done;
  const std::string doing = state_->script_state->Snapshot().doing;
  state_->options.log(deaths + "; " + std::to_string(survivors) +
                      (survivors == 1 ? " rank continues" : " ranks continue") +
                      ", and averages are now over these. All of them have all earlier averages (" +
                      std::to_string(repeated) +
                      (repeated == 1 ? " operation was" : " operations were") +
                      " completed from other ranks' history); this process" +
                      (doing.empty() ? "" : ", in " + doing + ",") + " is now rank 0" +
                      (done_before != regrouping.most_done ? ", and had missed some of them" : ""));
}

// Replays what other ranks have executed and this rank has not.
void Recovery::CatchUp(const Regrouping& regrouping) {
  uint64_t number = regrouping.least_done;
  for (const Unit& unit : regrouping.missing) {
    if (++number > history_->done() && !state_->given_up) Replay(unit);
  }
}

void Recovery::Replay(const Unit& unit) {
  // Only counts it: the survivors restart their histories next.
  history_->Add({unit.what, Result()}, /*proves_all_started=*/false);
  if (!unit.what.responses.empty()) {
    const Status status = parts_.executor->Deliver(unit.what.responses.front(), unit.result);
    if (!status.ok()) state_->FailForGood(status);
  } else if (!unit.what.fatal.empty()) {
    state_->FailForGood(Status(Code::kUnavailable, unit.what.fatal));
  } else {
    parts_.negotiator->ExecuteRest(unit.what);
  }
}

// Completes withdrawals that were not answered, since the new coordinator does not know them, and
// maps the roots of broadcasts to their new ranks.
void Recovery::AdaptPending(const Regrouping& regrouping) {
  std::vector<std::string> withdrawn;
  const uint64_t next_generation = next_ranks_.size() + 1;
  NameTable& names = parts_.pending->names();
  names.ForEachInOrder([&](NameTable::Entry* entry) {
    if (entry->withdrawn) withdrawn.push_back(entry->name);
    for (Submission& submission : entry->submissions) {
      Signature& signature = submission.request.signature;
      if (signature.kind != OpKind::kBroadcast) continue;
      signature.root = regrouping.NewRank(signature.root);
      submission.request.generation = next_generation;
    }
  });
  for (const std::string& name : withdrawn) {
    parts_.pending->Complete(names.FindPending(name), WithdrawnStatus(name));
  }
}

void Recovery::RestartInNewGroup() {
  state_->published->BeginGeneration();
  state_->published->ForgetPosts(kJoinedPost);  // they contain ranks of the former group
  parts_.messenger->Restart();
  parts_.pending->Restart();
  history_->Restart();
  parts_.reduction->DivideByWeights();
  parts_.negotiator->Restart();
  parts_.wait_state_reporter->Restart();
  state_->interrupted = false;
  state_->failure = Status();
  parts_.pending->AnnounceAll();
}

}  // namespace tfmpi
