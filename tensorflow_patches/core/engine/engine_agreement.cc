// What this rank says and hears: requests become known, votes and ready lists go out, response
// lists come in.

#include <algorithm>
#include <utility>

#include "tensorflow_patches/core/engine/engine.h"

namespace tfmpi {

bool Engine::TakeSubmissions() {
  queue_.Drain(&drained_);
  for (Submission& submission : drained_.submissions) Accept(&submission);
  for (Ticket ticket : drained_.withdrawals) WithdrawNow(ticket);
  for (const std::string& key : drained_.posts) NotePost(key);
  const bool any = !drained_.empty();
  drained_.clear();  // what was refused holds its submitter's memory
  return any;
}

// Takes it over.
void Engine::Accept(Submission* submission) {
  const Request& request = submission->request;
  Status status = failure_.ok() || interrupted_ ? Validate(request.signature) : failure_;
  if (status.ok() && options_.go_on) status = MakeOfThisGroup(&submission->request);
  const bool orphaned = options_.go_on && request.signature.root == Request::kDeadRoot;
  if (status.ok() && request.signature.kind == OpKind::kBroadcast && !orphaned &&
      (request.signature.root < 0 || request.signature.root >= topology().size)) {
    status = Status(Code::kInvalidArgument, "broadcast '" + request.name + "' from rank " +
                                                std::to_string(request.signature.root) + " of " +
                                                std::to_string(topology().size));
  }
  if (status.ok()) status = CheckNothingMissed(request);
  if (!status.ok()) {
    request.done(status);
    return;
  }
  stillness_.Stir(now_);
  communication_stats_.Submitted(request);
  NameTable::Entry* const entry = names_.Add(std::move(*submission));
  if (entry->submissions.size() == 1) Announce(entry);
}

// A rank whose variables are no longer the others' must not train on as if they were.
Status Engine::CheckNothingMissed(const Request& request) const {
  if (missed_ == 0 || request.purpose != Purpose::kStep || !IsGradient(request.signature))
    return Status();
  return Status(Code::kFailedPrecondition,
                "rank " + std::to_string(topology().rank) + "/" + std::to_string(topology().size) +
                    " gives the gradient '" + request.name +
                    "', but the others have trained on while it waited for a file of rank 0 or in "
                    "a barrier, so its variables are no longer theirs. Give all ranks as many "
                    "steps before each, or call tf.mpi.broadcast_variables after it");
}

// Its first request becomes known to the coordinator with the next ready list.
void Engine::Announce(NameTable::Entry* entry) {
  if (!former_errors_.empty() && EndsByFormerError(entry)) return;
  entry->announced = now_;
  const Request& request = entry->submissions.front().request;
  const Signature& signature = request.signature;
  const NameId id = names_.IdOf(*entry, signature);
  if (id == kNoId) {
    ready_list_.requests.push_back({entry->name, signature, request.fingerprint, request.purpose});
  } else if (GathersRows(signature.kind)) {
    ready_list_.gathers.push_back({id, signature.shape[0]});
  } else {
    ready_list_.ready.push_back(id);
  }
  if (early_errors_.empty()) return;
  if (auto early = early_errors_.find(entry->name); early != early_errors_.end()) {
    const Status status = early->second.front();
    early->second.pop_front();
    if (early->second.empty()) early_errors_.erase(early);
    // Said at once: the next request of this name must not share a message with this one, in which
    // a number counts once and comes before every name.
    const std::string name = entry->name;
    if (failure_.ok()) TellCoordinator();
    if (NameTable::Entry* const pending = names_.FindPending(name)) Complete(pending, status);
  }
}

void Engine::WithdrawNow(Ticket ticket) {
  NameTable::Entry* const entry = names_.FindPending(ticket);
  if (entry == nullptr) return;
  std::vector<Submission>& submissions = entry->submissions;
  if (submissions.front().ticket == ticket) {
    // Its data stays until the coordinator has answered: the ranks may be agreeing on it now.
    ready_list_.withdrawn.push_back(entry->name);
    entry->withdrawn = true;
    return;
  }
  const auto queued =
      std::find_if(submissions.begin(), submissions.end(),
                   [ticket](const Submission& submission) { return submission.ticket == ticket; });
  communication_stats_.Ended(queued->request, false);
  const auto done = std::move(queued->request.done);
  submissions.erase(queued);
  done(Status(Code::kCancelled, "'" + entry->name + "' was withdrawn"));
}

void Engine::NoteEnd() {
  // Once more: what was handed in before the wish to end was seen must not be lost.
  if ((join_requested_ && !joined_) || (leave_requested_ && !left_)) TakeSubmissions();
  if (join_requested_ && !joined_ && names_.nothing_pending()) {
    joined_ = true;
    ready_list_.joined = true;
    life_signs_.Begin(now_);
  }
  if (leave_requested_ && !left_) {
    left_ = true;
    ready_list_.leaving = leave_reason_;
  }
}

bool Engine::ExchangeMessages(bool news) {
  bool progress = Say();
  std::vector<ControlMessage> inbox;
  const Status status = transport_->Receive(&inbox);
  if (!status.ok()) Fail(status);
  for (const ControlMessage& message : inbox) {
    if (failure_.ok()) Handle(message);
  }
  progress |= !inbox.empty();
  if (failure_.ok()) progress |= PassOn();
  if (coordinator_ != nullptr && failure_.ok() && (news || progress)) Coordinate();
  const bool passes_on = relay_ != nullptr && relay_->has_due();
  return progress || passes_on || (!bypass_.voted() && !ready_list_.empty());
}

// What this rank has to say: as a vote, if what is expected is among it, else to the coordinator.
// At one position a rank does one or the other. What it has beyond a vote waits until that is
// decided.
bool Engine::Say() {
  if (ready_list_.empty()) return false;
  // The coordinator must hear that a wait is over before it hears what comes after it.
  if (told_standing_.blocked == Standing::Blocked::kForFile) {
    stood_at_ = TimePoint();
    TellStanding();
  }
  const bool fits = bypass_.Fits(ready_list_);
  const bool had_voted = bypass_.voted();
  if (!had_voted && fits && bypass_.Vote(ready_list_, now_) == Outcome::kCommitted) {
    ExecutePredicted();
    return true;
  }
  if (bypass_.voted()) {
    const bool open = bypass_.Watch() == Outcome::kOpen;
    if (open && fits && now_ < bypass_.voted_at() + options_.vote_patience) return !had_voted;
    const uint64_t position = bypass_.position();
    EndBypass();
    if (bypass_.position() != position) return true;  // it was committed
  }
  TellCoordinator();
  return true;
}

// Decides the vote at this position, if it is open, and does what is committed there.
void Engine::EndBypass() {
  if (bypass_.End() == Outcome::kCommitted) ExecutePredicted();
}

// All that is to be said. Nobody votes any more at the position where this ends.
void Engine::TellCoordinator() {
  do {
    EndBypass();
  } while (failure_.ok() && bypass_.Look() != Outcome::kRejected);
  if (failure_.ok() && !ready_list_.empty()) SendReadyList();
}

// All have voted, this rank too.
void Engine::ExecutePredicted() {
  if (coordinator_ != nullptr) coordinator_->Predicted(bypass_.expected().back(), now_);
  predicted_.fetch_add(1, std::memory_order_relaxed);
  ++answers_;
  const ResponseList& response_list = bypass_.Commit(&ready_list_);
  if (options_.trace) options_.trace(EngineOptions::Event::kVoted, 0, Encode(response_list));
  Execute(response_list);
  RejectWhatWasTold();
}

// What is expected next may be something that this rank has told the coordinator before, together
// with what has just come: it will not vote, and whoever has, or would, need not wait.
void Engine::RejectWhatWasTold() {
  if (told_ == 0 || !failure_.ok()) return;
  const auto told = [this](NameId id)
                        TFMPI_REQUIRES(communication_thread_) { return names_.entry(id)->told; };
  const std::vector<NameId>& names = bypass_.expected();
  if (std::any_of(names.begin(), names.end(), told)) bypass_.End();
}

void Engine::NoteTold(NameTable::Entry* entry) {
  if (entry == nullptr || entry->submissions.empty() || entry->told) return;
  entry->told = true;
  ++told_;
}

void Engine::SendReadyList() {
  std::sort(ready_list_.ready.begin(), ready_list_.ready.end());
  const ReadyList ready_list = std::exchange(ready_list_, ReadyList());
  for (const NameId id : ready_list.ready) NoteTold(names_.entry(id));
  for (const KnownGather& gather : ready_list.gathers) NoteTold(names_.entry(gather.id));
  for (const NamedSignature& named : ready_list.requests) {
    NoteTold(names_.FindPending(named.name));
  }
  SayUp(ready_list);
}

Standing Engine::Stand() {
  // Shorter waits need no word.
  constexpr std::chrono::milliseconds kLong{300};
  Standing standing = whereabouts_.Look();
  const NameTable::Entry* entry = nullptr;
  int waits = 0;
  names_.ForEachPending([&](const NameTable::Entry& pending) {
    for (const Submission& submission : pending.submissions) {
      if (!IsWaitedFor(submission.request.purpose)) continue;
      entry = &pending;
      ++waits;
    }
  });
  standing.gives_nothing &= waits == 0;
  if (standing.blocked != Standing::Blocked::kNo || whereabouts_.several_threads()) return standing;
  if (waits == 1 && entry->submissions.front().request.blocks) {
    if (!entry->told || now_ - entry->announced < kLong) return standing;
    standing.blocked = Standing::Blocked::kInRequest;
    standing.what = entry->name;
    standing.gives_nothing = entry->submissions.front().request.gives_nothing;
    return standing;
  }
  const Clock::duration patience = options_.coordinator.deadlock_timeout;
  if (waits == 0 || patience.count() == 0) {
    stillness_.Stir(now_);
  } else if (ready_list_.empty() && stillness_.Lasts(now_, patience)) {
    standing.still = true;
    standing.answers = answers_;
  }
  return standing;
}

// What this rank waits for, if the coordinator does not know. No word of it is a vote, or ends one.
bool Engine::TellStanding() {
  constexpr std::chrono::milliseconds kBetweenLooks{20};
  if (!failure_.ok() || joined_ || left_ || now_ - stood_at_ < kBetweenLooks) return false;
  stood_at_ = now_;
  Standing standing = Stand();
  const bool asked = asked_for_doing_ || coordinator_ != nullptr;
  const std::string doing = std::exchange(told_standing_.doing, standing.doing);
  const bool known = standing == told_standing_ && (standing.doing == doing || !asked);
  if (known) {
    told_standing_.doing = doing;
    return false;
  }
  told_standing_ = standing;
  asked_for_doing_ = false;
  stood_aside_ |= standing.gives_nothing;
  ReadyList ready_list;
  ready_list.standing = {std::move(standing)};
  SayUp(ready_list);
  return true;
}

void Engine::Coordinate() {
  ResponseList response_list = coordinator_->Decide(Clock::now());
  const std::vector<std::string> notices = coordinator_->TakeNotices();
  for (const std::string& line : notices) {
    if (options_.log) options_.log(line);
  }
  // A report of a stall, mostly: who waits hears that rank 0 is there, ReportSilence.
  if (!notices.empty() && failure_.ok()) GiveLifeSign();
  if (failure_.ok() && !response_list.empty()) Answer(std::move(response_list));
}

// On rank 0, all ranks.
void Engine::Answer(ResponseList response_list) {
  // A vote is committed before what stands in the response list, or not at all.
  if (!response_list.responses.empty()) TellCoordinator();
  if (!failure_.ok()) return;
  response_list.position = bypass_.position();
  SayDown(response_list, Encode(response_list));
  if (failure_.ok()) ExecuteResponseList(response_list);
}

void Engine::ExecuteResponseList(const ResponseList& response_list) {
  // An error answers what every rank announces, those too that have not yet.
  const bool unsaid = !response_list.errors.empty() && !ready_list_.empty();
  if (unsaid || (bypass_.voted() && !response_list.responses.empty())) TellCoordinator();
  if (!failure_.ok()) return;
  if (!response_list.responses.empty()) {
    if (response_list.position != bypass_.position()) {
      return Fail(Status(Code::kInternal, "rank " + std::to_string(topology().rank) +
                                              " has agreed " + std::to_string(bypass_.position()) +
                                              " times, and rank 0 " +
                                              std::to_string(response_list.position)));
    }
    bypass_.Came(response_list, names_);
  }
  if (response_list.answers()) ++answers_;
  if (options_.trace) options_.trace(EngineOptions::Event::kTold, 0, Encode(response_list));
  Execute(response_list);
  if (!response_list.responses.empty()) RejectWhatWasTold();
}

}  // namespace tfmpi
