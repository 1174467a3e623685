// Going on without ranks that have died: those that are left meet, do alike what some of them have
// done of what was agreed, and begin anew as a smaller group with what is still pending.
//
// docs/decisions/053. What a rank has handed to its kernels is in its history with its result, so
// that those that had not come so far get the same bits; what nobody has done is nobody's, and is
// announced again.

#include <algorithm>
#include <utility>

#include "tensorflow_patches/core/agreement/envelope.h"
#include "tensorflow_patches/core/engine/engine.h"
#include "tensorflow_patches/core/memory/outlived_memory.h"
#include "tensorflow_patches/core/transport/roll_call.h"

namespace tfmpi {

void Engine::SetNeedsAll(const std::string& why) {
  std::lock_guard<std::mutex> lock(posted_mutex_);
  needs_all_ = why;
}

void Engine::NotePost(const std::string& post) {
  coordinator_->Post(post);
  if (options_.go_on) posts_under_way_.push_back(post);
}

// Whether what has failed has failed because a rank has died. That may be heard of after it.
bool Engine::Interrupts() {
  constexpr std::chrono::milliseconds kBetweenLooks{10};
  constexpr int kLooks = 20;
  if (!options_.go_on || given_up_) return false;
  for (int look = 0; look < kLooks; ++look) {
    if (changing_->membership()->Disturbed()) return true;
    Clock::Sleep(kBetweenLooks);
  }
  return false;
}

void Engine::CheckDisturbance() {
  constexpr std::chrono::milliseconds kBetweenLooks{2};  // each asks MPI
  if (!options_.go_on || !failure_.ok() || now_ < looked_for_deaths_ + kBetweenLooks) return;
  looked_for_deaths_ = now_;
  if (changing_->membership()->Disturbed()) Fail(Status(Code::kUnavailable, "a rank has died"));
}

// It may have been made before a rank died.
Status Engine::MakeOfThisGroup(Request* request) {
  Signature& signature = request->signature;
  if (signature.on_gpu) {
    return Status(Code::kFailedPrecondition,
                  "'" + request->name +
                      "' is on a GPU, and TF_MPI_FAULT=shrink knows host memory only; set "
                      "TF_MPI_FAULT=abort");
  }
  if (signature.kind != OpKind::kBroadcast) return Status();
  for (uint64_t group = request->generation; group < next_ranks_.size(); ++group) {
    const std::vector<int>& next = next_ranks_[group];
    const auto root = static_cast<size_t>(signature.root);
    if (root >= next.size() || next[root] < 0) {
      return EndsByOrphan(request, group);
    }
    signature.root = next[root];
  }
  request->generation = next_ranks_.size();
  return Status();
}

// To end it on this rank only would make it meet the others' next broadcast of that name.
Status Engine::EndsByOrphan(Request* request, uint64_t group) {
  if (interrupted_) {  // the meeting will hear of it
    request->signature.root = Request::kDeadRoot;
    return Status();
  }
  FailForGood(
      Status(Code::kUnavailable, "'" + request->name + "' cannot come: rank " +
                                     std::to_string(request->signature.root) + " of " +
                                     std::to_string(next_ranks_[group].size()) +
                                     " has died, and was to give the others what nobody else has"));
  return failure_;
}

Status Engine::ExecuteCarefully(const Response& response) {
  const TimePoint deadline = now_ + options_.collective_timeout;
  Unit unit;
  bool meets_all = false;
  Status status = careful_.Collect(response, fusion_entries_, deadline, &unit.result, &meets_all);
  if (!status.ok()) {
    KeepForGood(std::move(unit.result.memory));
    return status;
  }
  status = CarefulReduction::Deliver(response, fusion_entries_, topology().rank, unit.result,
                                     /*collected_here=*/true);
  unit.what.responses = {response};
  history_.Add(std::move(unit), meets_all);
  return status;
}

// All ranks have the same history, so all do this at the same unit.
void Engine::KeepHistoryShort() {
  constexpr size_t kMostBytes = size_t{64} << 20;
  constexpr uint64_t kMostUnits = 1000;
  if (history_.bytes() <= kMostBytes && history_.done() - history_.first() <= kMostUnits) return;
  const Status status = careful_.Meet(now_ + options_.collective_timeout);
  if (!status.ok()) return Fail(status);
  history_.Forget();
}

// With all ranks that live. True if every rank's script has ended, and the loop ends.
bool Engine::MeetSurvivors() {
  if (interrupted_ && HearsOfEnd()) return false;
  TakeSubmissions();  // of this group
  const auto deadline = [this] { return Clock::now() + options_.collective_timeout; };
  Membership* membership = changing_->membership();
  bool all = false;
  Status status = membership->Agree(!interrupted_, deadline(), &all);
  if (status.ok() && all) return true;
  interrupted_ = true;
  failure_ = Status(Code::kUnavailable, "a rank has died");
  for (int ranks = topology().size; status.ok(); --ranks) {
    // Each time another one has died, or this is for another reason, of which there is no end.
    if (ranks < 0) status = Status(Code::kInternal, "they do not come together");
    std::unique_ptr<Transport> next;
    if (status.ok()) status = membership->Regroup(&next);
    if (!status.ok()) break;
    Reunion reunion;
    const Status met = Meet(next.get(), ReportOfThis(), history_, deadline(), &reunion);
    membership = next->membership();
    status = membership->Agree(met.ok(), deadline(), &all);
    if (status.ok() && all) {
      GoOn(std::move(next), reunion);
      return false;
    }
    changing_->Keep(std::move(next));
  }
  FailForGood(Status(status.code(), "a rank has died, and the others could not go on without it: " +
                                        status.message()));
  return false;
}

// A rank that has said why it stops was not killed, though its process is gone.
bool Engine::HearsOfEnd() {
  std::vector<ControlMessage> inbox;
  transport_->Receive(&inbox);  // whatever has failed, some may be there
  for (const ControlMessage& sealed : inbox) {
    std::string bytes;
    Open(++received_[sealed.source], sealed.bytes, &bytes);
    ReadyList ready_list;
    ResponseList response_list;
    std::string why;
    if (coordinator_ != nullptr && Decode(bytes, &ready_list) && !ready_list.leaving.empty()) {
      why = "rank " + std::to_string(sealed.source) + "/" + std::to_string(topology().size) +
            " has stopped: " + ready_list.leaving;
    } else if (coordinator_ == nullptr && Decode(bytes, &response_list)) {
      why = response_list.fatal;
    }
    if (why.empty()) continue;
    FailForGood(Status(Code::kUnavailable, why));
    return true;
  }
  return false;
}

void Engine::FailForGood(const Status& status) {
  if (!failure_.ok() && !interrupted_) return;
  given_up_ = true;
  interrupted_ = false;
  failure_ = Status();
  Fail(status);
}

Report Engine::ReportOfThis() {
  Report report;
  report.former_rank = topology().rank;
  report.done = history_.done();
  report.first = history_.first();
  names_.ForEachInOrder([&](NameTable::Entry* entry) {
    for (const Submission& submission : entry->submissions) {
      const Signature& signature = submission.request.signature;
      if (signature.kind == OpKind::kBroadcast) report.roots.push_back(signature.root);
    }
  });
  std::lock_guard<std::mutex> lock(posted_mutex_);
  report.needs_all = needs_all_;
  return report;
}

std::string Engine::DescribeDeaths(const Reunion& reunion) const {
  std::vector<int> dead;
  for (int rank = 0; rank < topology().size; ++rank) {
    if (reunion.NewRank(rank) < 0) dead.push_back(rank);
  }
  return NameRanks(dead) + " of " + std::to_string(topology().size) +
         (dead.size() == 1 ? " has died" : " have died");
}

// The same on all ranks that are left.
void Engine::GoOn(std::unique_ptr<Transport> next, const Reunion& reunion) {
  const std::string deaths = DescribeDeaths(reunion);
  for (const Report& report : reunion.reports) {
    const bool orphaned = std::any_of(report.roots.begin(), report.roots.end(),
                                      [&](int32_t root) { return reunion.NewRank(root) < 0; });
    // To end it on some ranks only would make them meet others' next broadcast of that name.
    if (orphaned) {
      changing_->Keep(std::move(next));
      return FailForGood(
          Status(Code::kUnavailable, deaths + ", and was to give the others what nobody else has"));
    }
    if (report.needs_all.empty()) continue;
    changing_->Keep(std::move(next));
    return FailForGood(Status(Code::kUnavailable, deaths + ", and " + report.needs_all));
  }
  const uint64_t begun = history_.done();
  CatchUp(reunion);
  if (given_up_) return changing_->Keep(std::move(next));
  EndWhatWasWithdrawn(reunion);
  std::vector<int> ranks;
  for (int rank = 0; rank < topology().size; ++rank) ranks.push_back(reunion.NewRank(rank));
  next_ranks_.push_back(std::move(ranks));
  changing_->Change(std::move(next));
  BeginAnew();
  if (topology().rank != 0 || !options_.log) return;
  const size_t left = reunion.reports.size();
  const std::string doing = whereabouts_.Look().doing;
  options_.log(deaths + (doing.empty() ? "" : ", in " + doing) + "; " + std::to_string(left) +
               (left == 1 ? " rank goes on" : " ranks go on") +
               ", and averages are over these. All of them have what was averaged before (" +
               std::to_string(reunion.most_done - reunion.least_done) +
               " results were passed on); this one now has rank 0" +
               (begun != reunion.most_done ? ", and was behind" : ""));
}

// What others have done, and this rank has not.
void Engine::CatchUp(const Reunion& reunion) {
  uint64_t number = reunion.least_done;
  for (const Unit& unit : reunion.missing) {
    if (++number > history_.done() && !given_up_) Do(unit);
  }
}

void Engine::Do(const Unit& unit) {
  history_.Add({unit.what, Result()}, /*meets_all=*/false);
  if (unit.what.responses.empty()) {
    if (!unit.what.fatal.empty()) {
      return FailForGood(Status(Code::kUnavailable, unit.what.fatal));
    }
    return ExecuteRest(unit.what);
  }
  const Response& response = unit.what.responses.front();
  const Status resolved = ResolveAll(response);
  if (!resolved.ok()) return FailForGood(resolved);
  CompleteEntries(CarefulReduction::Deliver(response, fusion_entries_, topology().rank, unit.result,
                                            /*collected_here=*/false));
}

// What was to be withdrawn is, as nobody knows of it any more; who gives a broadcast has another
// number.
void Engine::EndWhatWasWithdrawn(const Reunion& reunion) {
  std::vector<std::string> withdrawn;
  const uint64_t next_generation = next_ranks_.size() + 1;
  names_.ForEachInOrder([&](NameTable::Entry* entry) {
    if (entry->withdrawn) withdrawn.push_back(entry->name);
    for (Submission& submission : entry->submissions) {
      Signature& signature = submission.request.signature;
      if (signature.kind != OpKind::kBroadcast) continue;
      signature.root = reunion.NewRank(signature.root);
      submission.request.generation = next_generation;
    }
  });
  for (const std::string& name : withdrawn) {
    Complete(names_.FindPending(name), Status(Code::kCancelled, "'" + name + "' was withdrawn"));
  }
}

// In the group that transport_ is of now.
void Engine::BeginAnew() {
  const auto size = static_cast<size_t>(topology().size);
  generation_.fetch_add(1, std::memory_order_release);
  sent_.assign(size, 0);
  received_.assign(size, 0);
  ready_list_ = ReadyList();
  told_ = 0;
  told_standing_ = Standing();
  stood_at_ = TimePoint();
  asked_for_doing_ = false;
  life_signs_ = LifeSigns(topology().size);
  MakeLinks();
  names_.Restart();
  bypass_.Restart();
  history_.Restart();
  careful_.DivideByWeights();
  for (auto& [name, errors] : early_errors_) {
    std::deque<Status>& former = former_errors_[name];
    former.insert(former.end(), errors.begin(), errors.end());
  }
  early_errors_.clear();
  TakeOver();
  interrupted_ = false;
  failure_ = Status();
  if (joined_) {
    ready_list_.joined = true;
    life_signs_.Begin(now_);
  }
  if (left_) ready_list_.leaving = leave_reason_;
  std::vector<std::string> pending;
  names_.ForEachInOrder([&](NameTable::Entry* entry) { pending.push_back(entry->name); });
  for (const std::string& name : pending) {
    if (NameTable::Entry* const entry = names_.FindPending(name)) Announce(entry);
  }
}

// The coordinator is that of the first rank that is left.
void Engine::TakeOver() {
  {
    std::lock_guard<std::mutex> lock(posted_mutex_);
    posted_.erase(kJoinedPost);  // with numbers that ranks no longer have
  }
  coordinator_.reset();
  const std::deque<std::string> posts = std::exchange(posts_under_way_, {});
  const std::string joined = std::string(kJoinedPost) + "\n";
  if (topology().rank != 0) return;
  coordinator_ = std::make_unique<Coordinator>(topology().size, options_.coordinator, Clock::now());
  for (const std::string& post : posts) {
    if (post.compare(0, joined.size(), joined) != 0) NotePost(post);
  }
}

// By an error that all ranks of a former group were told of, before this one asked.
bool Engine::EndsByFormerError(NameTable::Entry* entry) {
  const auto former = former_errors_.find(entry->name);
  if (former == former_errors_.end()) return false;
  const Status status = former->second.front();
  former->second.pop_front();
  if (former->second.empty()) former_errors_.erase(former);
  Complete(entry, status);
  return true;
}

}  // namespace tfmpi
