#include "tensorflow_patches/core/engine.h"

#include <pthread.h>
#include <sys/prctl.h>

#include <algorithm>
#include <utility>

namespace tfmpi {
namespace {

using std::chrono::milliseconds;

// A sleeping communication thread is woken when there is something to do; but time itself is
// something: stalls are looked for this often.
constexpr milliseconds kIdleNap{20};
// Beyond the stall timeout, which the coordinator reports better than its peers can.
constexpr std::chrono::seconds kCoordinatorGrace{30};

}  // namespace

Engine::Engine(std::unique_ptr<Transport> transport, EngineOptions options)
    : transport_(std::move(transport)),
      options_(std::move(options)),
      queue_([this] { transport_->Wake(); }),
      fusion_(transport_.get(), options_.coordinator.fusion_threshold),
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
    tickets->push_back(0);
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
  return {completed_.load(), collectives_.load(), bytes_.load()};
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
  prctl(PR_SET_TIMERSLACK, 1000);  // ns; the default of 50 µs is longer than our short naps
  while (!finished_ && !stop_requested_) {
    bool progress = TakeSubmissions();
    NoteEnd();
    if (failure_.ok()) progress |= Exchange();
    if (!failure_.ok() && (joined_ || left_ || join_requested_ || leave_requested_)) break;
    if (progress) continue;
    CheckCoordinator();
    // Nothing can be agreed on without this rank, unless it has joined.
    const bool expecting = !pending_.empty() || joined_ || left_;
    transport_->Wait(kIdleNap, expecting, [this] { return queue_.Stirs(); });
  }
  Stop();
}

void Engine::Stop() {
  queue_.Close();
  TakeSubmissions();
  const Status status =
      failure_.ok() ? Status(Code::kFailedPrecondition, "the engine has stopped") : failure_;
  while (!pending_.empty()) Complete(pending_.begin()->first, status);
  ended_ = true;
}

bool Engine::TakeSubmissions() {
  Drained drained = queue_.Drain();
  for (Submission& submission : drained.submissions) Accept(std::move(submission));
  for (Ticket ticket : drained.withdrawals) WithdrawNow(ticket);
  for (const std::string& key : drained.posts) coordinator_->Post(key);
  return !drained.empty();
}

void Engine::Accept(Submission submission) {
  const Request& request = submission.request;
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
  const std::string name = request.name;
  names_[submission.ticket] = name;
  Named& named = pending_[name];
  named.submissions.push_back(std::move(submission));
  if (named.submissions.size() == 1) Announce(name);
}

// The first request of `name` becomes known to the coordinator with the next announcement.
void Engine::Announce(const std::string& name) {
  Named& named = pending_.at(name);
  named.announced = Clock::now();
  const Request& request = named.submissions.front().request;
  auto it = ids_.find(name);
  if (it != ids_.end() && by_id_[it->second].signature == WithoutRows(request.signature)) {
    if (GathersRows(request.signature.kind)) {
      announcement_.gathers.push_back({it->second, request.signature.shape[0]});
    } else {
      announcement_.ready.push_back(it->second);
    }
  } else {
    announcement_.requests.push_back({name, request.signature, request.fingerprint});
  }
  if (auto early = early_errors_.find(name); early != early_errors_.end()) {
    const Status status = early->second;
    early_errors_.erase(early);
    // Said at once: the next request of this name must not share a message with this one, in which
    // a number counts once and comes before every name.
    if (failure_.ok()) SendAnnouncement();
    Complete(name, status);
  }
}

void Engine::WithdrawNow(Ticket ticket) {
  auto it = names_.find(ticket);
  if (it == names_.end()) return;
  const std::string name = it->second;
  std::deque<Submission>& submissions = pending_.at(name).submissions;
  if (submissions.front().ticket == ticket) {
    // Its data stays until the coordinator has answered: the ranks may be agreeing on it now.
    announcement_.withdrawn.push_back(name);
    return;
  }
  auto queued = std::find_if(submissions.begin(), submissions.end(),
                             [&](const Submission& s) { return s.ticket == ticket; });
  communication_stats_.Ended(queued->request, false);
  const auto done = std::move(queued->request.done);
  submissions.erase(queued);
  names_.erase(it);
  done(Status(Code::kCancelled, "'" + name + "' was withdrawn"));
}

void Engine::NoteEnd() {
  // Once more: what was handed in before the wish to end was seen must not be lost.
  if ((join_requested_ && !joined_) || (leave_requested_ && !left_)) TakeSubmissions();
  if (join_requested_ && !joined_ && pending_.empty()) {
    joined_ = true;
    announcement_.joined = true;
  }
  if (leave_requested_ && !left_) {
    left_ = true;
    announcement_.leaving = leave_reason_;
  }
}

bool Engine::Exchange() {
  bool progress = !announcement_.empty();
  if (progress) SendAnnouncement();
  std::vector<ControlMessage> inbox;
  const Status status = transport_->Receive(&inbox);
  if (!status.ok()) Fail(status);
  for (const ControlMessage& message : inbox) {
    if (failure_.ok()) Handle(message);
  }
  progress |= !inbox.empty();
  if (coordinator_ != nullptr && failure_.ok()) Coordinate();
  return progress;
}

void Engine::SendAnnouncement() {
  std::sort(announcement_.ready.begin(), announcement_.ready.end());
  const Announcement announcement = std::exchange(announcement_, Announcement());
  if (coordinator_ != nullptr) {
    coordinator_->Receive(0, announcement, Clock::now());
    return;
  }
  const std::string bytes = Encode(announcement);
  communication_stats_.Sent(bytes.size());
  const Status status = transport_->Send(0, bytes);
  if (!status.ok()) Fail(status);
}

void Engine::Handle(const ControlMessage& message) {
  communication_stats_.Received();
  if (coordinator_ != nullptr) {
    Announcement announcement;
    if (!Decode(message.bytes, &announcement)) {
      Fail(Status(Code::kInternal,
                  "rank 0 cannot read an announcement of rank " + std::to_string(message.source)));
      return;
    }
    coordinator_->Receive(message.source, announcement, Clock::now());
    return;
  }
  Verdict verdict;
  if (!Decode(message.bytes, &verdict)) {
    Fail(Status(Code::kInternal, "cannot read a verdict of rank 0"));
    return;
  }
  Execute(verdict);
}

void Engine::Coordinate() {
  const Verdict verdict = coordinator_->Decide(Clock::now());
  for (const std::string& line : coordinator_->TakeNotices()) {
    if (options_.log) options_.log(line);
  }
  if (verdict.empty()) return;
  const std::string bytes = Encode(verdict);
  for (int rank = 1; rank < topology().size; ++rank) {
    communication_stats_.Sent(bytes.size());
    const Status status = transport_->Send(rank, bytes);
    if (!status.ok()) return Fail(status);
  }
  Execute(verdict);
}

void Engine::Execute(const Verdict& verdict) {
  response_notes_.VerdictBegins(verdict);
  for (const Response& response : verdict.responses) {
    if (failure_.ok()) Execute(response);
  }
  // Before the errors: one that the other ranks ran into after this rank had withdrawn answers its
  // next request of that name.
  for (const Withdrawal& withdrawal : verdict.withdrawn) {
    if (withdrawal.rank != topology().rank) continue;
    Complete(withdrawal.name, Status(Code::kCancelled, "'" + withdrawal.name + "' was withdrawn"));
  }
  for (const NamedError& error : verdict.errors) {
    const Status status(error.code, error.message);
    if (pending_.count(error.name) != 0) {
      Complete(error.name, status);
    } else if (!joined_) {
      early_errors_[error.name] = status;
    }
  }
  if (coordinator_ == nullptr) {  // rank 0 has counted its own
    for (const std::string& key : verdict.posts) CountPost(key);
  }
  if (!verdict.fatal.empty()) Fail(Status(Code::kUnavailable, verdict.fatal));
  if (verdict.finished) finished_ = true;
}

Slot Engine::Resolve(const ResponseItem& item) {
  if (item.is_new && item.id != kNoId) {
    if (by_id_.size() <= item.id) by_id_.resize(item.id + 1);
    by_id_[item.id] = item.named;
    ids_[item.named.name] = item.id;
  }
  const NamedSignature& named = item.is_new ? item.named : by_id_.at(item.id);
  auto it = pending_.find(named.name);
  Slot slot{named.signature, nullptr};
  if (it != pending_.end()) slot.request = &it->second.submissions.front().request;
  return slot;
}

Status Engine::Transfer(const std::vector<Slot>& slots, const Response& response) {
  const TimePoint deadline = Clock::now() + options_.collective_timeout;
  switch (slots.front().signature.kind) {
    case OpKind::kAllreduce:
      return fusion_.Allreduce(slots, response.contributors, deadline);
    case OpKind::kAllgather:
      return fusion_.Allgather(slots.front(), response.items.front().rows, deadline);
    case OpKind::kExchange:
      return fusion_.Exchange(slots.front(), response.items.front().rows, response.contributors,
                              deadline);
    case OpKind::kBroadcast:
      return fusion_.Broadcast(slots.front(), deadline);
    case OpKind::kBarrier:
      return Status();
  }
  return Status(Code::kInternal, "unknown operation");
}

void Engine::Execute(const Response& response) {
  std::vector<Slot> slots;
  slots.reserve(response.items.size());
  for (const ResponseItem& item : response.items) slots.push_back(Resolve(item));
  const Span span = response_notes_.ResponseBegins(slots);
  const Status status = Transfer(slots, response);
  collectives_.fetch_add(1, std::memory_order_relaxed);
  for (const Slot& slot : slots) {
    if (slot.request == nullptr) continue;
    if (status.ok()) {
      completed_.fetch_add(Tensors(slot.request->signature), std::memory_order_relaxed);
      const Signature& own = slot.request->signature;  // allgather: rows differ by rank
      bytes_.fetch_add(NumElements(own.shape) * SizeOf(own.dtype), std::memory_order_relaxed);
    }
    const std::string name = slot.request->name;  // Complete ends the request's life
    if (status.code() == Code::kDeadlineExceeded || status.code() == Code::kUnavailable) {
      Complete(name, Status(status.code(), "rank " + std::to_string(topology().rank) + "/" +
                                               std::to_string(topology().size) + ": " +
                                               Name(slot.signature.kind) + " '" + name +
                                               "': " + status.message()));
    } else {
      Complete(name, status);
    }
  }
  if (status.code() == Code::kDeadlineExceeded || status.code() == Code::kUnavailable) Fail(status);
}

void Engine::Complete(const std::string& name, const Status& status) {
  auto it = pending_.find(name);
  if (it == pending_.end()) return;
  Submission ended = std::move(it->second.submissions.front());
  const std::string key = it->first;  // `name` may live in what is erased below
  it->second.submissions.pop_front();
  names_.erase(ended.ticket);
  communication_stats_.Ended(ended.request, status.ok());
  if (it->second.submissions.empty()) {
    pending_.erase(it);
  } else {
    Announce(key);
  }
  ended.request.done(status);
}

// After this nothing is communicated any more; what is pending and what still comes fails with
// `status`.
void Engine::Fail(const Status& status) {
  if (!failure_.ok()) return;
  failure_ = status;
  TellPeers(status);
  while (!pending_.empty()) Complete(std::string(pending_.begin()->first), status);
}

// Best effort, over a transport that may be what has failed: peers that are not told time out.
void Engine::TellPeers(const Status& status) {
  if (coordinator_ == nullptr) {
    Announcement announcement;
    announcement.leaving = status.message();
    transport_->Send(0, Encode(announcement));
    return;
  }
  Verdict verdict;
  verdict.fatal = status.message();
  for (int rank = 1; rank < topology().size; ++rank) transport_->Send(rank, Encode(verdict));
}

// The coordinator reports stalls; this is for when it does not answer at all.
void Engine::CheckCoordinator() {
  const Clock::duration timeout = options_.coordinator.stall_timeout;
  if (coordinator_ != nullptr || timeout.count() == 0 || !failure_.ok()) return;
  const TimePoint now = Clock::now();
  for (const auto& [name, named] : pending_) {
    if (now - named.announced < timeout + kCoordinatorGrace) continue;
    return Fail(
        Status(Code::kDeadlineExceeded,
               "rank " + std::to_string(topology().rank) + "/" + std::to_string(topology().size) +
                   ": rank 0 has not answered about '" + name +
                   "' for longer than TF_MPI_STALL_TIMEOUT; its process hangs or has died"));
  }
}

}  // namespace tfmpi
