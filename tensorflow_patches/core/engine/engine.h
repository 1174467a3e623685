// The engine: one per process. Its communication thread makes the transport calls (transport.h).
//
// Submit, Withdraw: any thread; they never block on communication. The engine owns the transport,
// and every request from Submit until Request::done. Ranks may submit requests in different orders,
// and different requests in the same step.

#ifndef TFMPI_CORE_ENGINE_ENGINE_H_
#define TFMPI_CORE_ENGINE_ENGINE_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tensorflow_patches/core/base/thread_annotations.h"
#include "tensorflow_patches/core/base/thread_role.h"
#include "tensorflow_patches/core/engine/engine_state.h"
#include "tensorflow_patches/core/engine/executor.h"
#include "tensorflow_patches/core/engine/messenger.h"
#include "tensorflow_patches/core/engine/negotiator.h"
#include "tensorflow_patches/core/engine/options.h"
#include "tensorflow_patches/core/engine/pending_requests.h"
#include "tensorflow_patches/core/engine/presence.h"
#include "tensorflow_patches/core/engine/published.h"
#include "tensorflow_patches/core/engine/recovery.h"
#include "tensorflow_patches/core/engine/script_state.h"
#include "tensorflow_patches/core/engine/wait_state_reporter.h"
#include "tensorflow_patches/core/recovery/recoverable_reduction.h"
#include "tensorflow_patches/core/request/queue.h"
#include "tensorflow_patches/core/request/request.h"
#include "tensorflow_patches/core/transport/transport.h"

namespace tfmpi {

class Engine {
 public:
  Engine(std::unique_ptr<Transport> transport, EngineOptions options);
  ~Engine();  // if neither Join nor Leave was called: Leave("the engine was destroyed")
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const Topology& topology() const { return transport()->topology(); }
  size_t fusion_threshold() const { return options_.coordinator.fusion_threshold; }
  std::string transport_description() const { return transport()->description(); }
  // For calls that are allowed on any thread; and for bench.cc, which uses it on all ranks in the
  // `done` of a barrier.
  Transport* transport() const { return transport_.get(); }

  // Returns the request's ticket; 0 if it has ended inside Submit.
  Ticket Submit(Request request);
  // Submits all of them together, so the communication thread is woken once. Appends their tickets
  // in order; `tickets` may be null if none will be withdrawn.
  void Submit(std::vector<Request> requests, std::vector<Ticket>* tickets);
  // The request ends with kCancelled, unless the ranks have already agreed on it: then it ends as
  // agreed. A ticket of a request that has ended is ignored.
  void Withdraw(Ticket ticket);

  // On rank 0 only (elsewhere it does nothing), any thread, returns at once: tells every rank that
  // `key` has happened once more; a text may follow the key after a line break. This is no request:
  // no rank waits for it, and ranks without requests receive it, too. All that is posted before
  // Join or Leave is delivered before the group ends, unless communication fails.
  void Post(const std::string& key);

  // What the script reports about itself. Any thread.
  ScriptState* script_state() { return &script_state_; }
  // The posts received, or on rank 0 sent; the failure; counters. Any thread. In `done`, the
  // generation is that of the group that produced the result.
  const Published& published() const { return published_; }
  Status failure() const { return published_.failure(); }
  EngineStats stats() const { return published_.stats(); }

  // At most one of Join and Leave is called, once, by one thread.
  //
  // This rank has no more requests. Waits until its requests have ended and every rank has joined,
  // contributing zeros to the others' averages, then finalizes the transport. Requests submitted
  // after this call fail.
  Status Join();
  // This rank stops with an error: every other rank's requests fail with `reason`. Waits up to
  // `grace` for the coordinator's answer, then until the communication thread has ended: if it is
  // in an operation, for up to collective_timeout.
  void Leave(const std::string& reason, Clock::duration grace);

  bool OnCommunicationThread() const { return communication_thread_.IsMine(); }
  // Only after the communication thread has ended, as in EngineOptions::at_end.
  RankStats FinishStats() {
    communication_thread_.AssertGivenUp();
    return state_.stats.Finish(Clock::now());
  }
  std::vector<LastReady> last_ready() const {
    communication_thread_.AssertGivenUp();
    const Coordinator* const coordinator = negotiator_.coordinator();
    return coordinator != nullptr ? coordinator->last_ready() : std::vector<LastReady>();
  }

  // The state that determines what the engine does next. For tests, between turns of the loop.
  struct View {
    const Queue* queue;
    const EngineState* state;
    const PendingRequests* pending;
    const Messenger* messenger;
    const Negotiator* negotiator;
  };
  View view() const { return {&queue_, &state_, &pending_, &messenger_, &negotiator_}; }

 private:
  ThreadRole communication_thread_;

  void Run();
  bool IsOver() const TFMPI_REQUIRES(communication_thread_);
  bool Turn() TFMPI_REQUIRES(communication_thread_);
  void HandleFailure() TFMPI_REQUIRES(communication_thread_);
  void Stop() TFMPI_REQUIRES(communication_thread_);
  bool TakeSubmissions() TFMPI_REQUIRES(communication_thread_);
  Status Accept(Request* request) TFMPI_REQUIRES(communication_thread_);
  void NoteEnd() TFMPI_REQUIRES(communication_thread_);
  bool ExchangeMessages(bool news) TFMPI_REQUIRES(communication_thread_);
  void PollForVotes() TFMPI_REQUIRES(communication_thread_);
  void CheckGpus() TFMPI_REQUIRES(communication_thread_);
  void Wait() TFMPI_REQUIRES(communication_thread_);

  const std::unique_ptr<Transport> transport_ TFMPI_PT_GUARDED_BY(communication_thread_);
  const EngineOptions options_;
  Queue queue_;
  Published published_;
  ScriptState script_state_;
  std::atomic<bool> ended_{false};  // the loop has ended

  // Each part may use those above it.
  EngineState state_ TFMPI_GUARDED_BY(communication_thread_);
  PendingRequests pending_ TFMPI_GUARDED_BY(communication_thread_);
  Messenger messenger_ TFMPI_GUARDED_BY(communication_thread_);
  Presence presence_ TFMPI_GUARDED_BY(communication_thread_);
  // Null unless the ranks continue after deaths; likewise recovery_.
  std::unique_ptr<RecoverableReduction> recoverable_ TFMPI_GUARDED_BY(communication_thread_);
  Executor executor_ TFMPI_GUARDED_BY(communication_thread_);
  Negotiator negotiator_ TFMPI_GUARDED_BY(communication_thread_);
  WaitStateReporter wait_state_reporter_ TFMPI_GUARDED_BY(communication_thread_);
  std::unique_ptr<Recovery> recovery_ TFMPI_GUARDED_BY(communication_thread_);
  Drained drained_ TFMPI_GUARDED_BY(communication_thread_);      // reused by TakeSubmissions
  bool failed_ TFMPI_GUARDED_BY(communication_thread_) = false;  // the failure has been handled

  std::function<void()> await_loop_;  // initialized last, when all else exists; null after the end
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_ENGINE_ENGINE_H_
