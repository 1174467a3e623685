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
// What is submitted after a failure is answered so soon.
constexpr milliseconds kFailedWait{2};
// Whoever has voted polls this long for its peers.
constexpr std::chrono::microseconds kPollPatience{1000};

std::function<void()> StartThread(const std::function<void()>& loop) {
  const auto thread = std::make_shared<std::thread>([loop] {
    pthread_setname_np(pthread_self(), "tf_mpi_comm");
    prctl(PR_SET_TIMERSLACK, 1000);  // ns; the default of 50 µs is longer than our short waits
    loop();
  });
  return [thread] { thread->join(); };
}

// All ranks choose alike, and one says so.
GpuOptions GpusOf(const EngineOptions& options, const Topology& topology) {
  GpuOptions gpus = options.gpus;
  if (topology.rank == 0) gpus.log = options.log;
  return gpus;
}

}  // namespace

Engine::Engine(std::unique_ptr<Transport> transport, EngineOptions options)
    : transport_(options.go_on ? std::unique_ptr<Transport>(
                                     std::make_unique<ChangingTransport>(std::move(transport)))
                               : std::move(transport)),
      options_(std::move(options)),
      queue_([this] { this->transport()->Wake(); }),
      fusion_(transport_.get(), options_.coordinator.fusion_threshold,
              GpusOf(options_, topology())),
      sent_(transport_->topology().size),
      received_(transport_->topology().size),
      // Statistics tell which rank came last: the coordinator's knowledge. A vote that a rank has
      // died in could not be told from one that was not held.
      bypass_(transport_.get(), options_.response_bypass && !options_.stats && !options_.go_on),
      life_signs_(transport_->topology().size),
      communication_stats_(options_.stats),
      changing_(options_.go_on ? static_cast<ChangingTransport*>(transport_.get()) : nullptr),
      careful_(transport_.get(), &history_) {
  if (topology().rank == 0) {
    coordinator_ =
        std::make_unique<Coordinator>(topology().size, options_.coordinator, Clock::now());
  }
  MakeLinks();
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
    if (request.generation == Request::kThisGeneration) request.generation = generation();
  }
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
  return it != posted_.end() ? it->second.count : 0;
}

std::string Engine::PostedValue(const std::string& key, int64_t number) const {
  std::lock_guard<std::mutex> lock(posted_mutex_);
  const auto it = posted_.find(key);
  const bool there =
      it != posted_.end() && number >= 0 && number < static_cast<int64_t>(it->second.said.size());
  return there ? it->second.said[number] : std::string();
}

void Engine::CountPost(const std::string& post) {
  const size_t end = post.find('\n');
  const bool says = end != std::string::npos;
  std::lock_guard<std::mutex> lock(posted_mutex_);
  Posts& posts = posted_[post.substr(0, end)];
  if (says || !posts.said.empty()) {
    posts.said.resize(posts.count);
    posts.said.push_back(says ? post.substr(end + 1) : std::string());
  }
  ++posts.count;
  ++posts_heard_;
}

Status Engine::failure() const {
  std::lock_guard<std::mutex> lock(posted_mutex_);
  return shown_failure_;
}

EngineStats Engine::stats() const {
  return {completed_.load(),     collectives_.load(),       bytes_.load(), predicted_.load(),
          messages_sent_.load(), messages_received_.load(), as_one_.load()};
}

Status Engine::Join() {
  join_requested_ = true;
  queue_.Wake();
  std::exchange(await_loop_, nullptr)();
  communication_thread_.AssertGivenUp();
  if (!failure_.ok()) return failure_;
  const Status drained = fusion_.DrainGpus(Clock::now() + options_.collective_timeout);
  if (!drained.ok()) return drained;
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
  while (!ended_ && Clock::now() < deadline) Clock::Sleep(milliseconds(1));
  stop_requested_ = true;
  queue_.Wake();
  std::exchange(await_loop_, nullptr)();
}

void Engine::Run() {
  communication_thread_.Take();
  while (!stop_requested_) {
    if (finished_ && (!options_.go_on || given_up_)) break;
    now_ = Clock::now();
    CheckDisturbance();
    if (interrupted_ || finished_) {
      if (MeetSurvivors()) break;
      continue;
    }
    bool progress = TakeSubmissions();
    NoteEnd();
    if (failure_.ok()) progress |= ExchangeMessages(/*news=*/true);  // time may have passed
    if (interrupted_) continue;
    if (!failure_.ok() && (joined_ || left_ || join_requested_ || leave_requested_)) break;
    if (progress) continue;
    if (bypass_.voted() && transport_->MayPoll()) {
      PollForVotes();
      if (!bypass_.voted()) continue;
    }
    if (!failure_.ok()) {
      // What peers still send nobody reads: a wait for messages would end at once, again and again.
      Clock::Sleep(kFailedWait);
      continue;
    }
    CheckCoordinator();
    CheckPeers();
    CheckGpus();
    if (TellStanding()) continue;
    // Nothing can be agreed on without this rank, unless it has joined.
    const bool keeps = relay_ != nullptr && relay_->keeps();
    const bool expecting = keeps || !names_.nothing_pending() || joined_ || left_;
    const bool patient = bypass_.voted() || keeps;
    transport_->Wait(
        patient ? std::min<Clock::duration>(options_.vote_patience, kIdleWait) : kIdleWait,
        expecting && (!links_.tree || links_.between_nodes), [this] {
          communication_thread_.AssertMine();
          return Stirs();
        });
  }
  Stop();
  communication_thread_.GiveUp();
}

// Its peers should vote at any moment: to sleep and be woken costs a step more. Ends when they have
// voted, when there is something else to do, or when its patience is over.
void Engine::PollForVotes() {
  constexpr int kPollsPerLook = 16;  // at the clock
  TimePoint began;
  int polls = 0;
  while (bypass_.voted() && failure_.ok() && !finished_ && !IsAskedToEnd()) {
    const bool submitted = TakeSubmissions();
    if (ExchangeMessages(submitted) || submitted) {
      polls = 0;
    } else if (++polls % kPollsPerLook == 0) {
      now_ = Clock::now();
      if (polls == kPollsPerLook) began = now_;
      if (now_ - began >= kPollPatience) return;
      std::this_thread::yield();  // others that wait for this core come first
    }
  }
}

void Engine::Stop() {
  queue_.Close();
  TakeSubmissions();
  if (!finished_ && failure_.ok()) TellBelowOfEnd();
  const Status status =
      failure_.ok() ? Status(Code::kFailedPrecondition, "the engine has stopped") : failure_;
  CompleteAll(status);
  ended_ = true;
}

// Something to do that no message tells of.
bool Engine::Stirs() const {
  return queue_.Stirs() || (bypass_.voted() && bypass_.Look() != Outcome::kOpen);
}

void Engine::CheckGpus() {
  const Status status = fusion_.CheckGpus(now_);
  if (status.ok()) return;
  Fail(Status(status.code(), "rank " + std::to_string(topology().rank) + "/" +
                                 std::to_string(topology().size) + ": " + status.message()));
}

// The coordinator reports stalls; this is for when it does not answer at all.
void Engine::CheckCoordinator() {
  const Clock::duration timeout = options_.coordinator.stall_timeout;
  if (coordinator_ != nullptr || !failure_.ok()) return;
  std::string unanswered;
  TimePoint since = now_;
  names_.ForEachPending([&](const NameTable::Entry& entry) {
    if (entry.announced >= since) return;
    since = entry.announced;
    unanswered = entry.name;
  });
  if (unanswered.empty()) return;
  if (timeout.count() > 0 && now_ - since >= WithGrace(timeout)) {
    return Fail(
        Status(Code::kDeadlineExceeded,
               "rank " + std::to_string(topology().rank) + "/" + std::to_string(topology().size) +
                   ": rank 0 has not answered about '" + unanswered +
                   "' for longer than TF_MPI_STALL_TIMEOUT; its process is stopped, hangs "
                   "or has died" +
                   (links_.parent == 0 ? ""
                                       : ", or that of rank " + std::to_string(links_.parent) +
                                             ", by way of which it answers")));
  }
  ReportSilence(unanswered, since);
}

// Rank 0 gives a sign of life with each of its reports of what stalls. Rank 1 speaks for all that
// hear none.
void Engine::ReportSilence(const std::string& unanswered, TimePoint since) {
  const Clock::duration warning = options_.coordinator.stall_warning;
  if (topology().rank != 1 || warning.count() == 0 || !options_.log) return;
  const TimePoint quiet_since = std::max({since, heard_of_coordinator_, reported_silence_});
  if (now_ - quiet_since < WithGrace(warning)) return;
  reported_silence_ = now_;
  const auto waited = std::chrono::duration_cast<std::chrono::seconds>(now_ - since);
  options_.log("rank 0 has not answered about '" + unanswered + "' for " +
               std::to_string(waited.count()) +
               " s; its process is stopped, hangs or has died. An error follows after "
               "TF_MPI_STALL_TIMEOUT");
}

}  // namespace tfmpi
