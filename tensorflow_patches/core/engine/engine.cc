#include "tensorflow_patches/core/engine/engine.h"

#include <pthread.h>
#include <sys/prctl.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "tensorflow_patches/core/engine/request_notes.h"
#include "tensorflow_patches/core/recovery/switchable_transport.h"

namespace tfmpi {
namespace {

using std::chrono::milliseconds;

// Without new work, the sleeping communication thread wakes up this often to look for stalls.
constexpr milliseconds kIdleWait{20};
// Requests submitted after a failure are answered within this time.
constexpr milliseconds kFailedWait{2};
// A rank that has voted polls this long for its peers' votes.
constexpr std::chrono::microseconds kPollPatience{1000};

std::function<void()> StartThread(const std::function<void()>& loop) {
  const auto thread = std::make_shared<std::thread>([loop] {
    pthread_setname_np(pthread_self(), kCommunicationThread);
    prctl(PR_SET_TIMERSLACK, 1000);  // ns; the default of 50 µs is longer than our short waits
    loop();
  });
  return [thread] { thread->join(); };
}

}  // namespace

Engine::Engine(std::unique_ptr<Transport> transport, EngineOptions options)
    : transport_(options.shrink_on_fault
                     ? std::unique_ptr<Transport>(
                           std::make_unique<SwitchableTransport>(std::move(transport)))
                     : std::move(transport)),
      options_(std::move(options)),
      queue_([this] { this->transport()->Wake(); }),
      state_(transport_.get(), &options_, &published_, &script_state_),
      pending_(&state_,
               [this] {
                 communication_thread_.AssertMine();
                 negotiator_.TellCoordinator();
               }),
      messenger_(&state_, &pending_),
      presence_(&state_, &pending_, &messenger_),
      recoverable_(options_.shrink_on_fault
                       ? std::make_unique<RecoverableReduction>(transport_.get())
                       : nullptr),
      executor_(&state_, &pending_, recoverable_.get()),
      negotiator_(&state_, &pending_, &messenger_, &executor_,
                  recoverable_ != nullptr ? recoverable_->history() : nullptr),
      wait_state_reporter_(&state_, &pending_, &negotiator_) {
  if (options_.shrink_on_fault) {
    const auto switchable = static_cast<SwitchableTransport*>(transport_.get());
    recovery_ = std::make_unique<Recovery>(
        &state_, RestartableParts{switchable, recoverable_.get(), &pending_, &messenger_,
                                  &executor_, &negotiator_, &wait_state_reporter_});
  }
  const auto loop = [this] { Run(); };
  await_loop_ = options_.start_loop ? options_.start_loop(loop) : StartThread(loop);
}

Engine::~Engine() {
  if (await_loop_) Leave("the engine was destroyed", std::chrono::seconds(1));
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
  for (Request& request : requests) {
    if (request.generation == Request::kThisGeneration) {
      request.generation = published_.generation();
    }
  }
  if (queue_.Push(&requests, tickets)) return;
  for (Request& request : requests) {
    if (tickets != nullptr) tickets->push_back(0);
    request.done(Status(Code::kFailedPrecondition,
                        "'" + request.name + "' was submitted after the engine had stopped"));
  }
}

void Engine::Withdraw(Ticket ticket) { queue_.PushWithdrawal(ticket); }

void Engine::Post(const std::string& key) {
  if (topology().rank != 0) return;
  published_.CountPost(key);
  queue_.PushPost(key);
}

Status Engine::Join() {
  queue_.AskToJoin();
  std::exchange(await_loop_, nullptr)();
  communication_thread_.AssertGivenUp();
  if (!state_.ok()) return state_.failure;
  const TimePoint deadline = Clock::now() + options_.collective_timeout;
  TFMPI_RETURN_IF_NOT_OK(executor_.fusion()->DrainGpus(deadline));
  if (options_.at_end && !options_.at_end(transport_.get())) {
    return Status(Code::kUnavailable, "the ranks could not gather their traces and statistics");
  }
  return transport_->Finalize();
}

void Engine::Leave(const std::string& reason, Clock::duration grace) {
  queue_.AskToLeave(reason);
  const TimePoint deadline = Clock::now() + grace;
  while (!ended_ && Clock::now() < deadline) Clock::Sleep(milliseconds(1));
  queue_.AskToStop();
  std::exchange(await_loop_, nullptr)();
}

void Engine::Run() {
  communication_thread_.Take();
  while (!queue_.stop_asked() && !IsOver() && Turn()) HandleFailure();
  Stop();
  communication_thread_.GiveUp();
}

// Whether every script has ended (with recovery_: see Turn) or, after a failure, this rank's.
bool Engine::IsOver() const {
  if (failed_) return queue_.join_asked() || queue_.leave_asked();
  return state_.finished && recovery_ == nullptr;
}

// With recovery_, returns false once all living ranks agree that every script has ended. Otherwise
// returns true, and IsOver ends the loop.
bool Engine::Turn() {
  state_.now = Clock::now();
  if (failed_) {
    // Not Wait: it returns at once if there are messages, which are no longer read.
    if (!TakeSubmissions()) Clock::Sleep(kFailedWait);
    return true;
  }
  if (recovery_ != nullptr) {
    recovery_->CheckForDeaths();
    const bool regroups = state_.interrupted || (state_.finished && state_.ok());
    if (regroups) TakeSubmissions();  // these belong to the group that ends now
    if (regroups && !state_.given_up) return !recovery_->RegroupSurvivors();
  }
  const bool submitted = TakeSubmissions();
  NoteEnd();
  // Time has passed, so the coordinator may have something to decide.
  const bool exchanged = state_.ok() && ExchangeMessages(/*news=*/true);
  if (submitted || exchanged || !state_.ok()) return true;
  if (negotiator_.voted() && transport_->MayPoll()) {
    PollForVotes();
    if (!negotiator_.voted() || !state_.ok()) return true;
  }
  presence_.CheckCoordinator();
  presence_.CheckPeers();
  CheckGpus();
  if (state_.ok() && !wait_state_reporter_.ReportWaitState()) Wait();
  return true;
}

// If a part has failed (EngineState::Fail): completes all requests and tells the peers, unless the
// survivors of a death can continue.
void Engine::HandleFailure() {
  if (state_.ok() || state_.interrupted || failed_) return;
  state_.interrupted = state_.CausedByDeath();
  if (state_.interrupted) return;  // the survivors regroup in the next turn
  failed_ = true;
  published_.SetFailure(state_.failure);
  messenger_.SendFailureToPeers(state_.failure);
  // Before anything waits for a stream, which may depend on the aborted work.
  executor_.fusion()->AbortGpus();
  pending_.CompleteAll(state_.failure);
}

void Engine::Stop() {
  queue_.Close();
  TakeSubmissions();
  HandleFailure();
  // Neither finished nor failed: this rank leaves.
  if (!state_.finished && state_.ok()) messenger_.SendStopToChildren(queue_.leave_reason());
  pending_.CompleteAll(state_.ok() ? Status(Code::kFailedPrecondition, "the engine has stopped")
                                   : state_.failure);
  ended_ = true;
}

bool Engine::TakeSubmissions() {
  queue_.Drain(&drained_);
  for (Submission& submission : drained_.submissions) {
    const Status status = Accept(&submission.request);
    if (status.ok()) {
      pending_.Add(std::move(submission));
    } else {
      submission.request.done(status);
    }
  }
  for (const Ticket ticket : drained_.withdrawals) pending_.Withdraw(ticket);
  for (const std::string& key : drained_.posts) negotiator_.NotePost(key);
  const bool any = !drained_.empty();
  drained_.clear();  // a rejected request still holds its submitter's memory
  return any;
}

// If the request cannot be accepted, the status with which it ends at once.
Status Engine::Accept(Request* request) {
  if (failed_) return state_.failure;
  const Signature& signature = request->signature;
  TFMPI_RETURN_IF_NOT_OK(Validate(signature));
  if (recovery_ != nullptr) TFMPI_RETURN_IF_NOT_OK(recovery_->MapToCurrentGroup(request));
  const bool orphaned = recovery_ != nullptr && signature.root == Request::kDeadRoot;
  if (signature.kind == OpKind::kBroadcast && !orphaned &&
      (signature.root < 0 || signature.root >= state_.size())) {
    return Status(Code::kInvalidArgument, "broadcast '" + request->name + "' from rank " +
                                              std::to_string(signature.root) + ", but there are " +
                                              std::to_string(state_.size()) + " ranks");
  }
  if (script_state_.missed_gradients() != 0 && request->purpose == Purpose::kStep &&
      IsGradient(signature)) {
    return Status(
        Code::kFailedPrecondition,
        state_.Me() + " submits the gradient '" + request->name +
            "', but the others have continued training while it waited for a file of rank 0 or "
            "in a barrier, so its variables differ from theirs. Let all ranks save, or call the "
            "barrier, after the same step (a save by the clock happens after a different step on "
            "each rank), or call tf.mpi.broadcast_variables afterwards");
  }
  return Status();
}

// After Join or Leave: announces it; a join once this rank has no pending request.
void Engine::NoteEnd() {
  const bool joins = queue_.join_asked() && !state_.joined;
  const bool leaves = queue_.leave_asked() && !state_.left;
  // Again, to include everything that was submitted before Join or Leave was called.
  if (joins || leaves) TakeSubmissions();
  if (joins) pending_.WithdrawAhead();
  if (joins && pending_.names().nothing_pending()) {
    state_.joined = true;
    pending_.ready_list().joined = true;
    messenger_.heartbeats().Begin(state_.now);
  }
  if (leaves) {
    state_.left = true;
    state_.leaving = queue_.leave_reason();
    pending_.ready_list().leaving = state_.leaving;
  }
}

bool Engine::ExchangeMessages(bool news) {
  wait_state_reporter_.ReportWaitEnd();
  return state_.ok() && negotiator_.Exchange(news);
}

// The peers are expected to vote soon, and sleeping would delay the step. Returns when the vote is
// decided, the engine fails or is to end, or there has been no work for kPollPatience.
void Engine::PollForVotes() {
  constexpr int kPollsPerClockRead = 16;
  TimePoint began;
  int polls = 0;
  while (negotiator_.voted() && state_.ok() && !state_.finished && !queue_.end_asked()) {
    const bool submitted = TakeSubmissions();
    if (ExchangeMessages(submitted) || submitted) {
      polls = 0;
    } else if (++polls % kPollsPerClockRead == 0) {
      state_.now = Clock::now();
      if (polls == kPollsPerClockRead) began = state_.now;
      if (state_.now - began >= kPollPatience) return;
      std::this_thread::yield();  // other threads that wait for this core come first
    }
  }
}

void Engine::CheckGpus() {
  const Status status = executor_.fusion()->CheckGpus(state_.now);
  if (!status.ok()) state_.Fail(Status(status.code(), state_.Me() + ": " + status.message()));
}

void Engine::Wait() {
  const bool holds_back = messenger_.holds_back();
  const bool patient = negotiator_.voted() || holds_back;
  const auto limit = patient ? std::min<Clock::duration>(options_.vote_patience, kIdleWait)
                             : Clock::duration(kIdleWait);
  // Until this rank has requests or has joined, the others cannot agree on an operation of all
  // ranks. In a tree, a rank without links to other nodes is woken by its leader in any case.
  const bool expecting =
      holds_back || !pending_.names().nothing_pending() || state_.joined || state_.left;
  const ControlLinks& links = messenger_.links();
  transport_->Wait(limit, expecting && (!links.tree || links.between_nodes), [this] {
    communication_thread_.AssertMine();
    return queue_.HasWork() || negotiator_.IsVoteDecided();  // no message announces these
  });
}

}  // namespace tfmpi
