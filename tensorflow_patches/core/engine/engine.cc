#include "tensorflow_patches/core/engine/engine.h"

#include <pthread.h>
#include <sys/prctl.h>

#include <algorithm>
#include <utility>

namespace tfmpi {
namespace {

using std::chrono::milliseconds;

// A sleeping communication thread is woken when there is something to do; but time itself is
// something: stalls are looked for this often.
constexpr milliseconds kIdleWait{20};
// Beyond the stall timeout, which the coordinator reports better than its peers can.
constexpr std::chrono::seconds kCoordinatorGrace{30};
// Whoever has voted, or carries its own requests, polls this long for its peers: to sleep and be
// woken costs a step more. Other threads that wait for this core come first; where it is a caller's
// own, after the first part.
constexpr std::chrono::microseconds kPollPatience{1000};
constexpr std::chrono::microseconds kCallerKeepsCore{50};
// On the core that it shares with its caller, the communication thread is interrupted by whom it
// has just woken, before it could give the progress lock up: who only tried would never get it.
// Nothing is lost where an operation is under way: no other begins before it ends.
constexpr std::chrono::microseconds kProgressLockPatience{100};

}  // namespace

Engine::Engine(std::unique_ptr<Transport> transport, EngineOptions options)
    : transport_(std::move(transport)),
      options_(std::move(options)),
      queue_([this] { transport_->Wake(); }),
      fusion_(transport_.get(), options_.coordinator.fusion_threshold),
      // Statistics tell which rank came last: the coordinator's knowledge.
      bypass_(transport_.get(), options_.forecasts && !options_.stats),
      communication_stats_(options_.stats) {
  if (topology().rank == 0) {
    coordinator_ =
        std::make_unique<Coordinator>(topology().size, options_.coordinator, Clock::now());
  }
  thread_ = std::thread([this] { Run(); });
}

Engine::~Engine() {
  if (thread_.joinable()) Leave("the engine was destroyed", std::chrono::seconds(1));
}

Ticket Engine::Submit(Request request) {
  std::vector<Request> requests;
  requests.push_back(std::move(request));
  std::vector<Ticket> tickets;
  Submit(std::move(requests), &tickets);
  return tickets.front();
}

void Engine::Submit(std::vector<Request> requests, std::vector<Ticket>* tickets) {
  NoteSubmitted(&requests);
  if (queue_.Push(&requests, tickets)) return;
  for (Request& request : requests) {
    if (tickets != nullptr) tickets->push_back(0);
    request.done(Status(Code::kFailedPrecondition,
                        "'" + request.name + "' came after the engine had stopped"));
  }
}

void Engine::Withdraw(Ticket ticket) { queue_.PushWithdrawal(ticket); }

void Engine::Post(const std::string& key) {
  if (topology().rank != 0) return;
  CountPost(key);
  queue_.PushPost(key);
}

int64_t Engine::Posted(const std::string& key) const {
  std::lock_guard<std::mutex> lock(posted_mutex_);
  const auto it = posted_.find(key);
  return it != posted_.end() ? it->second : 0;
}

void Engine::CountPost(const std::string& key) {
  std::lock_guard<std::mutex> lock(posted_mutex_);
  ++posted_[key];
}

EngineStats Engine::stats() const {
  return {completed_.load(), collectives_.load(), bytes_.load(), predicted_.load()};
}

Status Engine::Join() {
  join_requested_ = true;
  queue_.Wake();
  thread_.join();
  if (!failure_.ok()) return failure_;  // the thread has ended: its state can be read here
  if (options_.at_end && !options_.at_end(transport_.get())) {
    return Status(Code::kUnavailable, "the ranks could not gather what they recorded");
  }
  return transport_->Finalize();
}

void Engine::Leave(const std::string& reason, Clock::duration grace) {
  leave_reason_ = reason;
  leave_requested_ = true;
  queue_.Wake();
  const TimePoint deadline = Clock::now() + grace;
  while (!ended_ && Clock::now() < deadline) std::this_thread::sleep_for(milliseconds(1));
  stop_requested_ = true;
  queue_.Wake();
  thread_.join();
}

void Engine::Run() {
  pthread_setname_np(pthread_self(), "tf_mpi_comm");
  prctl(PR_SET_TIMERSLACK, 1000);  // ns; the default of 50 µs is longer than our short waits
  std::unique_lock<ProgressLock> progress_lock(progress_lock_);
  progress_lock_holder_ = communication_thread_ = std::this_thread::get_id();
  while (!finished_ && !stop_requested_) {
    now_ = Clock::now();
    bool progress = TakeSubmissions();
    NoteEnd();
    if (failure_.ok()) progress |= ExchangeMessages(/*news=*/true);  // time may have passed
    if (!failure_.ok() && (joined_ || left_ || join_requested_ || leave_requested_)) break;
    if (progress) continue;
    if (bypass_.voted() && transport_->MayPoll()) {
      Poll([this] { return !bypass_.voted(); }, /*keeps_core=*/Clock::duration::zero());
      if (!bypass_.voted()) continue;
    }
    CheckCoordinator();
    // Nothing can be agreed on without this rank, unless it has joined.
    const bool expecting = !names_.nothing_pending() || joined_ || left_;
    transport_->Wait(
        bypass_.voted() ? std::min<Clock::duration>(options_.vote_patience, kIdleWait) : kIdleWait,
        expecting, [this] { return Stirs(); }, &progress_lock);
  }
  Stop();
}

bool Engine::BeginInlineProgress() {
  if (!progress_lock_.try_lock_for(kProgressLockPatience)) return false;
  if (ended_ || !transport_->BeginInlineProgress()) {
    progress_lock_.unlock();
    return false;
  }
  progress_lock_holder_ = std::this_thread::get_id();
  now_ = Clock::now();
  return true;
}

void Engine::Progress(const std::function<bool()>& over) { Poll(over, kCallerKeepsCore); }

void Engine::Poll(const std::function<bool()>& over, Clock::duration keeps_core) {
  constexpr int kPollsPerLook = 16;  // at the clock
  TimePoint began;
  int polls = 0;
  while (!over() && failure_.ok() && !finished_ && !IsAskedToEnd()) {
    const bool submitted = TakeSubmissions();
    if (ExchangeMessages(submitted) || submitted) {
      polls = 0;
    } else if (++polls % kPollsPerLook == 0) {
      now_ = Clock::now();
      if (polls == kPollsPerLook) began = now_;
      const Clock::duration waited = now_ - began;
      if (waited >= kPollPatience) return;
      if (waited >= keeps_core) std::this_thread::yield();
    }
  }
}

void Engine::EndInlineProgress() {
  transport_->EndInlineProgress(
      [this] { return Stirs() || !failure_.ok() || finished_ || IsAskedToEnd(); });
  progress_lock_holder_ = communication_thread_;
  progress_lock_.unlock();
}

void Engine::Stop() {
  queue_.Close();
  TakeSubmissions();
  const Status status =
      failure_.ok() ? Status(Code::kFailedPrecondition, "the engine has stopped") : failure_;
  CompleteAll(status);
  ended_ = true;
}

// Something to do that no message tells of.
bool Engine::Stirs() const {
  return queue_.Stirs() || (bypass_.voted() && bypass_.Look() != Outcome::kOpen);
}

bool Engine::TakeSubmissions() {
  queue_.Drain(&drained_);
  for (Submission& submission : drained_.submissions) Accept(&submission);
  for (Ticket ticket : drained_.withdrawals) WithdrawNow(ticket);
  for (const std::string& key : drained_.posts) coordinator_->Post(key);
  const bool any = !drained_.empty();
  drained_.clear();  // what was refused holds its submitter's memory
  return any;
}

// Takes it over.
void Engine::Accept(Submission* submission) {
  const Request& request = submission->request;
  Status status = failure_.ok() ? Validate(request.signature) : failure_;
  if (status.ok() && request.signature.kind == OpKind::kBroadcast &&
      (request.signature.root < 0 || request.signature.root >= topology().size)) {
    status = Status(Code::kInvalidArgument, "broadcast '" + request.name + "' from rank " +
                                                std::to_string(request.signature.root) + " of " +
                                                std::to_string(topology().size));
  }
  if (!status.ok()) {
    request.done(status);
    return;
  }
  communication_stats_.Submitted(request);
  NameTable::Entry* const entry = names_.Add(std::move(*submission));
  if (entry->submissions.size() == 1) Announce(entry);
}

// Its first request becomes known to the coordinator with the next ready list.
void Engine::Announce(NameTable::Entry* entry) {
  entry->announced = now_;
  const Request& request = entry->submissions.front().request;
  const Signature& signature = request.signature;
  const bool gathers = GathersRows(signature.kind);
  const auto is_known = [&] {
    if (entry->id == kNoId) return false;
    const Signature& known = names_.signature(entry->id);
    return gathers ? known == WithoutRows(signature) : known == signature;
  };
  if (!is_known()) {
    ready_list_.requests.push_back({entry->name, signature, request.fingerprint});
  } else if (gathers) {
    ready_list_.gathers.push_back({entry->id, signature.shape[0]});
  } else {
    ready_list_.ready.push_back(entry->id);
  }
  if (early_errors_.empty()) return;
  if (auto early = early_errors_.find(entry->name); early != early_errors_.end()) {
    const Status status = early->second;
    early_errors_.erase(early);
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
  if (coordinator_ != nullptr && failure_.ok() && (news || progress)) Coordinate();
  return progress || (!bypass_.voted() && !ready_list_.empty());
}

// What this rank has to say: as a vote, if what is expected is among it, else to the coordinator.
// At one position a rank does one or the other. What it has beyond a vote waits until that is
// decided.
bool Engine::Say() {
  if (ready_list_.empty()) return false;
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
    if (bypass_.position() != position) return true;  // carried
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
  Execute(bypass_.Commit(&ready_list_));
  RejectWhatWasTold();
}

// What is expected next may be something that this rank has told the coordinator before, together
// with what has just come: it will not vote, and whoever has, or would, need not wait.
void Engine::RejectWhatWasTold() {
  if (told_ == 0 || !failure_.ok()) return;
  const auto told = [this](NameId id) { return names_.entry(id)->told; };
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
  if (coordinator_ != nullptr) {
    coordinator_->Receive(0, ready_list, Clock::now());
    return;
  }
  const std::string bytes = Encode(ready_list);
  communication_stats_.Sent(bytes.size());
  const Status status = transport_->Send(0, bytes);
  if (!status.ok()) Fail(status);
}

void Engine::Handle(const ControlMessage& message) {
  communication_stats_.Received();
  if (coordinator_ != nullptr) {
    ReadyList ready_list;
    if (!Decode(message.bytes, &ready_list)) {
      Fail(Status(Code::kInternal,
                  "rank 0 cannot read a ready list of rank " + std::to_string(message.source)));
      return;
    }
    coordinator_->Receive(message.source, ready_list, Clock::now());
    return;
  }
  ResponseList response_list;
  if (!Decode(message.bytes, &response_list)) {
    Fail(Status(Code::kInternal, "cannot read a response list of rank 0"));
    return;
  }
  ExecuteResponseList(response_list);
}

void Engine::Coordinate() {
  ResponseList response_list = coordinator_->Decide(Clock::now());
  for (const std::string& line : coordinator_->TakeNotices()) {
    if (options_.log) options_.log(line);
  }
  if (response_list.empty()) return;
  // A vote is committed before what stands in the response list, or not at all.
  if (!response_list.responses.empty()) TellCoordinator();
  if (!failure_.ok()) return;
  response_list.position = bypass_.position();
  const std::string bytes = Encode(response_list);
  for (int rank = 1; rank < topology().size; ++rank) {
    communication_stats_.Sent(bytes.size());
    const Status status = transport_->Send(rank, bytes);
    if (!status.ok()) return Fail(status);
  }
  if (!response_list.responses.empty()) {
    const Status status = transport_->Flush(Clock::now() + options_.collective_timeout);
    if (!status.ok()) return Fail(status);
  }
  ExecuteResponseList(response_list);
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
  Execute(response_list);
  if (!response_list.responses.empty()) RejectWhatWasTold();
}

void Engine::Execute(const ResponseList& response_list) {
  response_notes_.ResponseListBegins(response_list);
  for (const Response& response : response_list.responses) {
    if (failure_.ok()) Execute(response);
  }
  // Before the errors: one that the other ranks ran into after this rank had withdrawn answers its
  // next request of that name.
  for (const Withdrawal& withdrawal : response_list.withdrawn) {
    NameTable::Entry* const entry = names_.FindPending(withdrawal.name);
    if (withdrawal.rank != topology().rank || entry == nullptr) continue;
    Complete(entry, Status(Code::kCancelled, "'" + withdrawal.name + "' was withdrawn"));
  }
  for (const NamedError& error : response_list.errors) {
    const Status status(error.code, error.message);
    if (NameTable::Entry* const entry = names_.FindPending(error.name)) {
      Complete(entry, status);
    } else if (!joined_) {
      early_errors_[error.name] = status;
    }
  }
  if (coordinator_ == nullptr) {  // rank 0 has counted its own
    for (const std::string& key : response_list.posts) CountPost(key);
  }
  if (!response_list.fatal.empty()) Fail(Status(Code::kUnavailable, response_list.fatal));
  if (response_list.finished) finished_ = true;
}

// The item's part of fusion_entries_ and entries_.
void Engine::Resolve(const ResponseItem& item) {
  if (item.is_new && item.id != kNoId) names_.Number(item.id, item.named);
  NameTable::Entry* const entry =
      item.id != kNoId ? names_.entry(item.id) : names_.FindPending(item.named.name);
  const Signature& signature = item.id != kNoId ? names_.signature(item.id) : item.named.signature;
  const bool takes_part = entry != nullptr && !entry->submissions.empty();
  fusion_entries_.push_back(
      {signature, takes_part ? &entry->submissions.front().request : nullptr});
  entries_.push_back(entry);
}

Status Engine::Transfer(const Response& response) {
  const std::vector<FusionEntry>& fusion_entries = fusion_entries_;
  const TimePoint deadline = now_ + options_.collective_timeout;
  switch (fusion_entries.front().signature.kind) {
    case OpKind::kAllreduce:
      return fusion_.Allreduce(fusion_entries, response.contributors, deadline);
    case OpKind::kAllgather:
      return fusion_.Allgather(fusion_entries.front(), response.items.front().rows, deadline);
    case OpKind::kSparseAllgather:
      return fusion_.SparseAllgather(fusion_entries.front(), response.items.front().rows,
                                     response.contributors, deadline);
    case OpKind::kBroadcast:
      return fusion_.Broadcast(fusion_entries.front(), deadline);
    case OpKind::kBarrier:
      return Status();
  }
  return Status(Code::kInternal, "unknown operation");
}

void Engine::Execute(const Response& response) {
  fusion_entries_.clear();
  entries_.clear();
  for (const ResponseItem& item : response.items) Resolve(item);
  const Span span = response_notes_.ResponseBegins(fusion_entries_);
  const Status status = Transfer(response);
  const bool fatal =
      status.code() == Code::kDeadlineExceeded || status.code() == Code::kUnavailable;
  uint64_t tensors = 0, bytes = 0;
  for (const FusionEntry& fusion_entry : fusion_entries_) {
    if (fusion_entry.request == nullptr) continue;
    const Signature& own = fusion_entry.request->signature;  // allgather: rows differ by rank
    tensors += Tensors(own);
    bytes += static_cast<uint64_t>(NumElements(own.shape)) * SizeOf(own.dtype);
  }
  collectives_.fetch_add(1, std::memory_order_relaxed);
  if (status.ok()) {
    completed_.fetch_add(tensors, std::memory_order_relaxed);
    bytes_.fetch_add(bytes, std::memory_order_relaxed);
  }
  if (bytes >= kAloneBytes) now_ = Clock::now();  // that took a while
  for (size_t i = 0; i < fusion_entries_.size(); ++i) {
    const FusionEntry& fusion_entry = fusion_entries_[i];
    if (fusion_entry.request == nullptr) continue;
    if (fatal) {
      Complete(entries_[i],
               Status(status.code(), "rank " + std::to_string(topology().rank) + "/" +
                                         std::to_string(topology().size) + ": " +
                                         Name(fusion_entry.signature.kind) + " '" +
                                         fusion_entry.request->name + "': " + status.message()));
    } else {
      Complete(entries_[i], status);
    }
    if (!failure_.ok()) return;  // all else has ended with it
  }
  if (fatal) Fail(status);
}

// Its first request has ended. The entry may be gone after this.
void Engine::Complete(NameTable::Entry* entry, const Status& status) {
  Submission submission;
  told_ -= entry->told;
  entry->told = false;
  NameTable::Entry* const left = names_.TakeFirst(entry, &submission);
  communication_stats_.Ended(submission.request, status.ok());
  if (left != nullptr && !left->submissions.empty()) Announce(left);
  submission.request.done(status);
}

void Engine::CompleteAll(const Status& status) {
  for (const std::string& name : names_.PendingNames()) {
    while (NameTable::Entry* const entry = names_.FindPending(name)) Complete(entry, status);
  }
}

// After this nothing is communicated any more; what is pending and what still comes fails with
// `status`.
void Engine::Fail(const Status& status) {
  if (!failure_.ok()) return;
  failure_ = status;
  TellPeers(status);
  CompleteAll(status);
}

// Best effort, over a transport that may be what has failed: peers that are not told time out.
void Engine::TellPeers(const Status& status) {
  if (coordinator_ == nullptr) {
    ReadyList ready_list;
    ready_list.leaving = status.message();
    transport_->Send(0, Encode(ready_list));
    return;
  }
  ResponseList response_list;
  response_list.fatal = status.message();
  for (int rank = 1; rank < topology().size; ++rank) transport_->Send(rank, Encode(response_list));
}

// The coordinator reports stalls; this is for when it does not answer at all.
void Engine::CheckCoordinator() {
  const Clock::duration timeout = options_.coordinator.stall_timeout;
  if (coordinator_ != nullptr || timeout.count() == 0 || !failure_.ok()) return;
  std::string unanswered;
  names_.ForEachPending([&](const NameTable::Entry& entry) {
    if (now_ - entry.announced >= timeout + kCoordinatorGrace) unanswered = entry.name;
  });
  if (unanswered.empty()) return;
  Fail(Status(Code::kDeadlineExceeded,
              "rank " + std::to_string(topology().rank) + "/" + std::to_string(topology().size) +
                  ": rank 0 has not answered about '" + unanswered +
                  "' for longer than TF_MPI_STALL_TIMEOUT; its process hangs or has died"));
}

}  // namespace tfmpi
