// The engine: one per process. Whoever holds its progress lock makes every transport call: its
// communication thread, or, in its place, a caller that would only wait for that one
// (InlineProgress). Comments here and below call it the communication thread in both cases.
//
// Submit, Withdraw: any thread, never block on communication. Completion callbacks run on the
// communication thread with no lock held but the progress lock. The engine owns the transport and
// all requests between Submit and completion. The order of requests, and which of them a step
// submits, may differ by rank.

#ifndef TFMPI_CORE_ENGINE_ENGINE_H_
#define TFMPI_CORE_ENGINE_ENGINE_H_

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "tensorflow_patches/core/agreement/bypass.h"
#include "tensorflow_patches/core/agreement/coordinator.h"
#include "tensorflow_patches/core/agreement/name_table.h"
#include "tensorflow_patches/core/base/progress_lock.h"
#include "tensorflow_patches/core/base/thread_annotations.h"
#include "tensorflow_patches/core/engine/request_notes.h"
#include "tensorflow_patches/core/observability/stats.h"
#include "tensorflow_patches/core/reduction/fusion.h"
#include "tensorflow_patches/core/request/queue.h"
#include "tensorflow_patches/core/request/request.h"
#include "tensorflow_patches/core/transport/transport.h"

namespace tfmpi {

struct EngineOptions {
  CoordinatorOptions coordinator;
  // A collective that all ranks agreed to start, and that has not ended by then, fails the engine.
  Clock::duration collective_timeout = std::chrono::seconds(300);
  // A line for people, on the communication thread.
  std::function<void(const std::string&)> log;
  bool stats = false;  // counts for TF_MPI_STATS
  // Ranks that share a word agree on a repeated step without a message (consensus.h).
  bool response_bypass = true;
  // A caller that waits may do the communication thread's work (InlineProgress).
  bool inline_progress = true;
  // After so long a wait for the others' votes the coordinator is told, which knows who is missing,
  // and says so.
  Clock::duration vote_patience = std::chrono::milliseconds(10);
  // When every rank has joined, on the thread that calls Join: the last use of the transport, by
  // all ranks alike. False: it has failed.
  std::function<bool(Transport*)> at_end;
};

// Counts since start; each is exact, together they are a snapshot.
struct EngineStats {
  uint64_t completed = 0;    // tensors of requests that ended well
  uint64_t collectives = 0;  // data operations on the transport
  uint64_t bytes = 0;        // of these requests' tensors
  uint64_t predicted = 0;    // agreements without a message
};

class Engine {
 public:
  Engine(std::unique_ptr<Transport> transport, EngineOptions options);
  ~Engine();  // stops the thread; without a Join before it, as Leave("the engine was destroyed")
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const Topology& topology() const { return transport_->topology(); }
  size_t fusion_threshold() const { return options_.coordinator.fusion_threshold; }
  std::string transport_description() const { return transport_->description(); }
  // For bench.h alone: to be driven in the `done` of a barrier, by all ranks alike.
  Transport* transport() { return transport_.get(); }

  Ticket Submit(Request request);
  // All at once, which spares the communication thread being woken for each. Appends their tickets,
  // in their order; null where none will be withdrawn.
  void Submit(std::vector<Request> requests, std::vector<Ticket>* tickets);
  // The request ends with kCancelled, unless the ranks have agreed on it already: then it ends as
  // agreed. A ticket that has ended is ignored.
  void Withdraw(Ticket ticket);

  // Rank 0 only (elsewhere it does nothing), any thread, returns at once: tells every rank that
  // `key` has happened once more. No request: nobody waits, and a rank that has no requests hears
  // of it too. What is posted before Join or Leave is delivered before the group ends.
  void Post(const std::string& key);
  // How often this rank has been told so; on rank 0, how often it posted. Any thread.
  int64_t Posted(const std::string& key) const;

  // This rank has no more requests. Waits until that holds for every rank, contributing zeros to
  // what the others still average; then leaves the group. No request may be submitted after it.
  Status Join();
  // This rank stops with an error: every other rank's requests fail with `reason`. Waits at most
  // `grace` for the coordinator to have heard.
  void Leave(const std::string& reason, Clock::duration grace);

  bool OnCommunicationThread() const { return std::this_thread::get_id() == progress_lock_holder_; }
  EngineStats stats() const;
  // Only when the communication thread has ended, as in EngineOptions::at_end: nobody can hold the
  // lock then.
  CommunicationStats& communication_stats() TFMPI_NO_THREAD_SAFETY_ANALYSIS {
    return communication_stats_;
  }
  std::vector<LastReady> last_ready() const {
    progress_lock_.AssertHeld();
    return coordinator_ != nullptr ? coordinator_->last_ready() : std::vector<LastReady>();
  }

 private:
  friend class InlineProgress;

  // Held by whoever makes progress: the communication thread, or an InlineProgress in its place.
  ProgressLock progress_lock_;

  // engine.cc: the communication thread's loop.
  void Run();
  bool BeginInlineProgress() TFMPI_TRY_ACQUIRE(true, progress_lock_);
  void Progress(const std::function<bool()>& over) TFMPI_REQUIRES(progress_lock_);
  void EndInlineProgress() TFMPI_RELEASE(progress_lock_);
  // Works until `over`, or until nothing has happened for a while. After `keeps_core` without
  // progress other threads of this core come first.
  void Poll(const std::function<bool()>& over, Clock::duration keeps_core)
      TFMPI_REQUIRES(progress_lock_);
  bool IsAskedToEnd() const { return join_requested_ || leave_requested_ || stop_requested_; }
  bool Stirs() const TFMPI_REQUIRES(progress_lock_);
  void CheckCoordinator() TFMPI_REQUIRES(progress_lock_);
  void Stop() TFMPI_REQUIRES(progress_lock_);
  void CountPost(const std::string& key);

  // engine_agreement.cc: what this rank says and hears.
  bool TakeSubmissions() TFMPI_REQUIRES(progress_lock_);
  void Accept(Submission* submission) TFMPI_REQUIRES(progress_lock_);
  void WithdrawNow(Ticket ticket) TFMPI_REQUIRES(progress_lock_);
  void Announce(NameTable::Entry* entry) TFMPI_REQUIRES(progress_lock_);
  void NoteEnd() TFMPI_REQUIRES(progress_lock_);
  // True if anything was done. `news`: the coordinator has some, beside messages.
  bool ExchangeMessages(bool news) TFMPI_REQUIRES(progress_lock_);
  bool Say() TFMPI_REQUIRES(progress_lock_);
  void EndBypass() TFMPI_REQUIRES(progress_lock_);
  void TellCoordinator() TFMPI_REQUIRES(progress_lock_);
  void ExecutePredicted() TFMPI_REQUIRES(progress_lock_);
  void NoteTold(NameTable::Entry* entry) TFMPI_REQUIRES(progress_lock_);
  void RejectWhatWasTold() TFMPI_REQUIRES(progress_lock_);
  void SendReadyList() TFMPI_REQUIRES(progress_lock_);
  void Handle(const ControlMessage& message) TFMPI_REQUIRES(progress_lock_);
  void Coordinate() TFMPI_REQUIRES(progress_lock_);
  void ExecuteResponseList(const ResponseList& response_list) TFMPI_REQUIRES(progress_lock_);

  // engine_execute.cc: what the ranks have agreed on.
  void Execute(const ResponseList& response_list) TFMPI_REQUIRES(progress_lock_);
  void Execute(const Response& response) TFMPI_REQUIRES(progress_lock_);
  void Resolve(const ResponseItem& item) TFMPI_REQUIRES(progress_lock_);
  Status Transfer(const Response& response) TFMPI_REQUIRES(progress_lock_);
  void Complete(NameTable::Entry* entry, const Status& status) TFMPI_REQUIRES(progress_lock_);
  void CompleteAll(const Status& status) TFMPI_REQUIRES(progress_lock_);
  void Fail(const Status& status) TFMPI_REQUIRES(progress_lock_);
  void TellPeers(const Status& status) TFMPI_REQUIRES(progress_lock_);

  std::unique_ptr<Transport> transport_;
  const EngineOptions options_;
  Queue queue_;

  // What other threads ask of the communication thread.
  std::atomic<bool> join_requested_{false};
  std::atomic<bool> stop_requested_{false};
  std::atomic<bool> leave_requested_{false};
  std::string leave_reason_;  // written before leave_requested_ is set
  std::atomic<bool> ended_{false};

  std::atomic<std::thread::id> progress_lock_holder_;  // unless the communication thread sleeps
  std::thread::id communication_thread_ TFMPI_GUARDED_BY(progress_lock_);

  std::unique_ptr<Coordinator> coordinator_ TFMPI_GUARDED_BY(progress_lock_);  // rank 0 only
  Fusion fusion_ TFMPI_GUARDED_BY(progress_lock_);
  ReadyList ready_list_ TFMPI_GUARDED_BY(progress_lock_);  // what is to be said next
  ResponseBypass bypass_
      TFMPI_GUARDED_BY(progress_lock_);  // where voted: ready_list_ holds all that is expected
  int told_ TFMPI_GUARDED_BY(progress_lock_) = 0;  // entries of names_ that are told
  // Read when the lock is taken, after a wait, and every few polls: exact enough for what takes
  // milliseconds.
  TimePoint now_ TFMPI_GUARDED_BY(progress_lock_);
  bool joined_ TFMPI_GUARDED_BY(progress_lock_) = false;
  bool left_ TFMPI_GUARDED_BY(progress_lock_) = false;
  bool finished_ TFMPI_GUARDED_BY(progress_lock_) = false;
  Status failure_ TFMPI_GUARDED_BY(progress_lock_);
  NameTable names_ TFMPI_GUARDED_BY(progress_lock_);
  Drained drained_ TFMPI_GUARDED_BY(progress_lock_);  // while it is taken in
  std::vector<FusionEntry> fusion_entries_
      TFMPI_GUARDED_BY(progress_lock_);  // of the response under way
  std::vector<NameTable::Entry*> entries_
      TFMPI_GUARDED_BY(progress_lock_);  // of fusion_entries_; null, or empty: no part in it
  // Errors agreed on for names that were not yet submitted here.
  std::unordered_map<std::string, Status> early_errors_ TFMPI_GUARDED_BY(progress_lock_);
  CommunicationStats communication_stats_ TFMPI_GUARDED_BY(progress_lock_);
  ResponseNotes response_notes_ TFMPI_GUARDED_BY(progress_lock_){&communication_stats_};

  mutable std::mutex posted_mutex_;
  std::unordered_map<std::string, int64_t> posted_;  // guarded by posted_mutex_

  std::atomic<uint64_t> completed_{0};
  std::atomic<uint64_t> collectives_{0};
  std::atomic<uint64_t> bytes_{0};
  std::atomic<uint64_t> predicted_{0};

  std::thread thread_;  // last: started when all else exists
};

// For a thread that submits requests and can do nothing until they have ended: it does the
// communication thread's work itself, which spares waking that one and being woken by it.
//
//   InlineProgress progress(engine);  // before Submit, which then wakes nobody
//   engine->Submit(...);
//   progress.Until(over);
//
// Does nothing where another thread is at work, or where the transport does not allow it. Callbacks
// of anyone's requests may run inside Until, as on the communication thread.
class InlineProgress {
 public:
  // The lock's fate hangs on begun_, which the checker cannot follow.
  explicit InlineProgress(Engine* engine) TFMPI_NO_THREAD_SAFETY_ANALYSIS
      : engine_(engine),
        begun_(engine->BeginInlineProgress()) {}
  ~InlineProgress() TFMPI_NO_THREAD_SAFETY_ANALYSIS {
    if (begun_) engine_->EndInlineProgress();
  }
  InlineProgress(const InlineProgress&) = delete;
  InlineProgress& operator=(const InlineProgress&) = delete;

  // Until `over`, or until peers have let this rank wait for a while: a thread that sleeps is no
  // quicker than the communication thread. A collective that has begun is carried to its end.
  void Until(const std::function<bool()>& over) TFMPI_NO_THREAD_SAFETY_ANALYSIS {
    if (begun_) engine_->Progress(over);
  }

 private:
  Engine* const engine_;
  const bool begun_;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_ENGINE_ENGINE_H_
