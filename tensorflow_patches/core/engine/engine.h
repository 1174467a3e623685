// The engine: one per process. Its communication thread makes every transport call.
//
// Submit, Withdraw: any thread, never block on communication. Completion callbacks run on the
// communication thread with no lock held. The engine owns the transport and all requests between
// Submit and completion. The order of requests, and which of them a step submits, may differ by
// rank.

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
  ~Engine();  // stops the thread; without a Join before it, as Leave("the engine was destroyed")
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const Topology& topology() const { return transport()->topology(); }
  size_t fusion_threshold() const { return options_.coordinator.fusion_threshold; }
  std::string transport_description() const { return transport()->description(); }
  // For what any thread may ask of it; and for bench.h, to be driven in the `done` of a barrier, by
  // all ranks alike.
  Transport* transport() const { return transport_.get(); }

  Ticket Submit(Request request);
  // All at once, which spares the communication thread being woken for each. Appends their tickets,
  // in their order; null where none will be withdrawn.
  void Submit(std::vector<Request> requests, std::vector<Ticket>* tickets);
  // The request ends with kCancelled, unless the ranks have agreed on it already: then it ends as
  // agreed. A ticket that has ended is ignored.
  void Withdraw(Ticket ticket);

  // Rank 0 only (elsewhere it does nothing), any thread, returns at once: tells every rank that
  // `key` has happened once more, and what stands in it after a line break. No request: nobody
  // waits, and a rank that has no requests hears of it too. What is posted before Join or Leave is
  // delivered before the group ends.
  void Post(const std::string& key);

  // What the script says of itself. Any thread.
  ScriptState* script_state() { return &script_state_; }
  // Posts that this rank has been told of, or on rank 0 has posted; why nothing can be communicated
  // any more; counts. Any thread. In `done` the generation is that of the group whose result it is.
  const Published& published() const { return published_; }
  Status failure() const { return published_.failure(); }
  EngineStats stats() const { return published_.stats(); }

  // This rank has no more requests. Waits until that holds for every rank, contributing zeros to
  // what the others still average; then leaves the group. No request may be submitted after it.
  Status Join();
  // This rank stops with an error: every other rank's requests fail with `reason`. Waits at most
  // `grace` for the coordinator to have heard.
  void Leave(const std::string& reason, Clock::duration grace);

  bool OnCommunicationThread() const { return communication_thread_.IsMine(); }
  // These only when the communication thread has ended, as in EngineOptions::at_end.
  RankStats FinishStats() {
    communication_thread_.AssertGivenUp();
    return state_.stats.Finish(Clock::now());
  }
  std::vector<LastReady> last_ready() const {
    communication_thread_.AssertGivenUp();
    const Coordinator* const coordinator = negotiator_.coordinator();
    return coordinator != nullptr ? coordinator->last_ready() : std::vector<LastReady>();
  }

  // What decides how it goes on. For tests, while the loop does nothing: start_loop.
  struct View {
    const Queue* queue;
    const EngineState* state;
    const PendingRequests* pending;
    const Messenger* messenger;
    const Negotiator* negotiator;
  };
  View view() const { return {&queue_, &state_, &pending_, &messenger_, &negotiator_}; }

 private:
  // What it guards, and functions that require it, are the communication thread's alone.
  ThreadRole communication_thread_;

  void Run();
  bool IsOver() const TFMPI_REQUIRES(communication_thread_);
  bool Turn() TFMPI_REQUIRES(communication_thread_);
  void EndByFailure() TFMPI_REQUIRES(communication_thread_);
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
  std::atomic<bool> ended_{false};

  // Each knows those above it.
  EngineState state_ TFMPI_GUARDED_BY(communication_thread_);
  PendingRequests pending_ TFMPI_GUARDED_BY(communication_thread_);
  Messenger messenger_ TFMPI_GUARDED_BY(communication_thread_);
  Presence presence_ TFMPI_GUARDED_BY(communication_thread_);
  // Null unless the ranks go on without those that die, as recovery_.
  std::unique_ptr<RecoverableReduction> recoverable_ TFMPI_GUARDED_BY(communication_thread_);
  Executor executor_ TFMPI_GUARDED_BY(communication_thread_);
  Negotiator negotiator_ TFMPI_GUARDED_BY(communication_thread_);
  WaitStateReporter wait_state_reporter_ TFMPI_GUARDED_BY(communication_thread_);
  std::unique_ptr<Recovery> recovery_ TFMPI_GUARDED_BY(communication_thread_);
  Drained drained_ TFMPI_GUARDED_BY(communication_thread_);      // while it is taken in
  bool failed_ TFMPI_GUARDED_BY(communication_thread_) = false;  // and every request has ended

  std::function<void()> await_loop_;  // last: started when all else exists; null once it has ended
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_ENGINE_ENGINE_H_
