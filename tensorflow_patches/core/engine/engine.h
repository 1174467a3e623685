// The engine: one per process. Its communication thread makes every transport call.
//
// Submit, Withdraw: any thread, never block on communication. Completion callbacks run on the
// communication thread with no lock held. The engine owns the transport and all requests between
// Submit and completion. The order of requests, and which of them a step submits, may differ by
// rank.

#ifndef TFMPI_CORE_ENGINE_ENGINE_H_
#define TFMPI_CORE_ENGINE_ENGINE_H_

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "tensorflow_patches/core/agreement/bypass.h"
#include "tensorflow_patches/core/agreement/coordinator.h"
#include "tensorflow_patches/core/agreement/name_table.h"
#include "tensorflow_patches/core/base/thread_annotations.h"
#include "tensorflow_patches/core/base/thread_role.h"
#include "tensorflow_patches/core/engine/life_signs.h"
#include "tensorflow_patches/core/engine/request_notes.h"
#include "tensorflow_patches/core/engine/whereabouts.h"
#include "tensorflow_patches/core/observability/stats.h"
#include "tensorflow_patches/core/recovery/careful_reduction.h"
#include "tensorflow_patches/core/recovery/changing_transport.h"
#include "tensorflow_patches/core/recovery/survivors.h"
#include "tensorflow_patches/core/reduction/fusion.h"
#include "tensorflow_patches/core/relay/relay.h"
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
  GpuOptions gpus;     // its `log` is this one's
  // Ranks that share a word agree on a repeated step without a message (consensus.h).
  bool response_bypass = true;
  // After so long a wait for the others' votes the coordinator is told, which knows who is missing,
  // and says so.
  Clock::duration vote_patience = std::chrono::milliseconds(10);
  // The ranks go on without those that die; the transport has a membership(). There are no votes,
  // and nothing on GPUs.
  bool go_on = false;
  // When every rank has joined, on the thread that calls Join: the last use of the transport, by
  // all ranks alike. False: it has failed.
  std::function<bool(Transport*)> at_end;
  // For tests, on the communication thread: what rank 0 has heard of `rank`, a ready list; what
  // this rank is about to do, a response list that it was told, or that all have voted for.
  enum class Event { kHeard, kTold, kVoted };
  std::function<void(Event event, int rank, const std::string& message)> trace;
  // Runs the communication thread's loop, and returns what waits for its end; null: on a thread of
  // its own. Tests run the loops of all ranks in turns.
  std::function<std::function<void()>(const std::function<void()>& loop)> start_loop;
};

// Counts since start; each is exact, together they are a snapshot.
struct EngineStats {
  uint64_t completed = 0;    // tensors of requests that ended well
  uint64_t collectives = 0;  // data operations on the transport
  uint64_t bytes = 0;        // of these requests' tensors
  uint64_t predicted = 0;    // agreements without a message
  uint64_t messages_sent = 0;
  uint64_t messages_received = 0;
  uint64_t as_one = 0;  // rank 0: agreements on what all ranks announced together, as before
};

// Every rank is told so of each rank that has joined; its number stands after a line break.
constexpr char kJoinedPost[] = "joined";

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
  // How often this rank has been told so; on rank 0, how often it posted. Any thread.
  int64_t Posted(const std::string& key) const;
  // What the `number`-th post of this key, from 0, said after a line break. Any thread.
  std::string PostedValue(const std::string& key, int64_t number) const;

  // How many posts this rank has been told of, of any key. Any thread.
  uint64_t posts_heard() const { return posts_heard_; }

  // For what the script says of itself. Any thread.
  Whereabouts* whereabouts() { return &whereabouts_; }
  // Why nothing can be communicated any more; ok until then. Any thread.
  Status failure() const;
  // The others may have averaged gradients while this rank had none to give (Standing): it may give
  // no more until its variables are theirs again, of which this tells. Any thread.
  void CaughtUp() { missed_ = 0; }
  // How many they have.
  uint64_t missed() const { return missed_; }

  // How often the group has become another, of those that were left. Any thread; in `done`, that of
  // the group whose result it is.
  uint64_t generation() const { return generation_.load(std::memory_order_acquire); }
  // Not empty: what this rank's script does, and what cannot go on with other ranks. Any thread.
  void SetNeedsAll(const std::string& why);

  // This rank has no more requests. Waits until that holds for every rank, contributing zeros to
  // what the others still average; then leaves the group. No request may be submitted after it.
  Status Join();
  // This rank stops with an error: every other rank's requests fail with `reason`. Waits at most
  // `grace` for the coordinator to have heard.
  void Leave(const std::string& reason, Clock::duration grace);

  bool OnCommunicationThread() const { return communication_thread_.IsMine(); }
  EngineStats stats() const;
  // These only when the communication thread has ended, as in EngineOptions::at_end.
  RankStats FinishStats() {
    communication_thread_.AssertGivenUp();
    return communication_stats_.Finish(Clock::now());
  }
  std::vector<LastReady> last_ready() const {
    communication_thread_.AssertGivenUp();
    return coordinator_ != nullptr ? coordinator_->last_ready() : std::vector<LastReady>();
  }

 private:
  friend class Inspector;  // tests/core/simulation

  // What it guards, and functions that require it, are the communication thread's alone.
  ThreadRole communication_thread_;

  // engine.cc: the communication thread's loop.
  void Run();
  void PollForVotes() TFMPI_REQUIRES(communication_thread_);
  bool IsAskedToEnd() const { return join_requested_ || leave_requested_ || stop_requested_; }
  bool Stirs() const TFMPI_REQUIRES(communication_thread_);
  void CheckCoordinator() TFMPI_REQUIRES(communication_thread_);
  void ReportSilence(const std::string& unanswered, TimePoint since)
      TFMPI_REQUIRES(communication_thread_);
  void CheckGpus() TFMPI_REQUIRES(communication_thread_);
  void Stop() TFMPI_REQUIRES(communication_thread_);
  void CountPost(const std::string& post);
  Status CheckNothingMissed(const Request& request) const;

  // engine_recovery.cc: going on without ranks that have died.
  Status MakeOfThisGroup(Request* request) TFMPI_REQUIRES(communication_thread_);
  Status EndsByOrphan(Request* request, uint64_t group) TFMPI_REQUIRES(communication_thread_);
  bool Interrupts() TFMPI_REQUIRES(communication_thread_);
  void CheckDisturbance() TFMPI_REQUIRES(communication_thread_);
  bool MeetSurvivors() TFMPI_REQUIRES(communication_thread_);
  bool HearsOfEnd() TFMPI_REQUIRES(communication_thread_);
  Report ReportOfThis() TFMPI_REQUIRES(communication_thread_);
  void GoOn(std::unique_ptr<Transport> next, const Reunion& reunion)
      TFMPI_REQUIRES(communication_thread_);
  void CatchUp(const Reunion& reunion) TFMPI_REQUIRES(communication_thread_);
  void Do(const Unit& unit) TFMPI_REQUIRES(communication_thread_);
  void EndWhatWasWithdrawn(const Reunion& reunion) TFMPI_REQUIRES(communication_thread_);
  void BeginAnew() TFMPI_REQUIRES(communication_thread_);
  void TakeOver() TFMPI_REQUIRES(communication_thread_);
  std::string DescribeDeaths(const Reunion& reunion) const TFMPI_REQUIRES(communication_thread_);
  void KeepHistoryShort() TFMPI_REQUIRES(communication_thread_);
  void NotePost(const std::string& post) TFMPI_REQUIRES(communication_thread_);
  void FailForGood(const Status& status) TFMPI_REQUIRES(communication_thread_);
  bool EndsByFormerError(NameTable::Entry* entry) TFMPI_REQUIRES(communication_thread_);
  Status ExecuteCarefully(const Response& response) TFMPI_REQUIRES(communication_thread_);

  // engine_agreement.cc: what this rank says and hears.
  bool TakeSubmissions() TFMPI_REQUIRES(communication_thread_);
  void Accept(Submission* submission) TFMPI_REQUIRES(communication_thread_);
  void WithdrawNow(Ticket ticket) TFMPI_REQUIRES(communication_thread_);
  void Announce(NameTable::Entry* entry) TFMPI_REQUIRES(communication_thread_);
  void NoteEnd() TFMPI_REQUIRES(communication_thread_);
  // True if anything was done. `news`: the coordinator has some, beside messages.
  bool ExchangeMessages(bool news) TFMPI_REQUIRES(communication_thread_);
  bool Say() TFMPI_REQUIRES(communication_thread_);
  void EndBypass() TFMPI_REQUIRES(communication_thread_);
  void TellCoordinator() TFMPI_REQUIRES(communication_thread_);
  void ExecutePredicted() TFMPI_REQUIRES(communication_thread_);
  void NoteTold(NameTable::Entry* entry) TFMPI_REQUIRES(communication_thread_);
  void RejectWhatWasTold() TFMPI_REQUIRES(communication_thread_);
  void SendReadyList() TFMPI_REQUIRES(communication_thread_);
  Standing Stand() TFMPI_REQUIRES(communication_thread_);
  bool TellStanding() TFMPI_REQUIRES(communication_thread_);
  void Coordinate() TFMPI_REQUIRES(communication_thread_);
  void Answer(ResponseList response_list) TFMPI_REQUIRES(communication_thread_);
  void ExecuteResponseList(const ResponseList& response_list) TFMPI_REQUIRES(communication_thread_);

  // engine_links.cc: between which ranks it travels.
  void MakeLinks() TFMPI_REQUIRES(communication_thread_);
  void SayUp(const ReadyList& ready_list) TFMPI_REQUIRES(communication_thread_);
  void SayDown(const ResponseList& response_list, const std::string& bytes)
      TFMPI_REQUIRES(communication_thread_);
  bool PassOn() TFMPI_REQUIRES(communication_thread_);
  void Hear(const Announcement& announcement) TFMPI_REQUIRES(communication_thread_);
  bool AnswersAsOne(const Announcement& announcement) TFMPI_REQUIRES(communication_thread_);
  Status Send(int rank, const std::string& message) TFMPI_REQUIRES(communication_thread_);
  void Handle(const ControlMessage& sealed) TFMPI_REQUIRES(communication_thread_);
  void HearFromBelow(int source, const std::string& bytes) TFMPI_REQUIRES(communication_thread_);
  void HearFromAbove(const std::string& bytes) TFMPI_REQUIRES(communication_thread_);
  void Tell(int rank, const ReadyList& ready_list) TFMPI_REQUIRES(communication_thread_);
  void CheckPeers() TFMPI_REQUIRES(communication_thread_);
  void CheckPeer(int rank) TFMPI_REQUIRES(communication_thread_);
  void GiveLifeSign() TFMPI_REQUIRES(communication_thread_);
  void TellPeers(const Status& status) TFMPI_REQUIRES(communication_thread_);
  void TellBelowOfEnd() TFMPI_REQUIRES(communication_thread_);

  // engine_execute.cc: what the ranks have agreed on.
  void Execute(const ResponseList& response_list) TFMPI_REQUIRES(communication_thread_);
  void Execute(const Response& response) TFMPI_REQUIRES(communication_thread_);
  void ExecuteRest(const ResponseList& response_list) TFMPI_REQUIRES(communication_thread_);
  Status ResolveAll(const Response& response) TFMPI_REQUIRES(communication_thread_);
  void CompleteEntries(const Status& status) TFMPI_REQUIRES(communication_thread_);
  Status Resolve(const ResponseItem& item, int contributors) TFMPI_REQUIRES(communication_thread_);
  Status Refusal(const std::string& what, const std::string& why) const
      TFMPI_REQUIRES(communication_thread_);
  Status Transfer(const Response& response) TFMPI_REQUIRES(communication_thread_);
  void Complete(NameTable::Entry* entry, const Status& status)
      TFMPI_REQUIRES(communication_thread_);
  void CompleteAll(const Status& status) TFMPI_REQUIRES(communication_thread_);
  void Fail(const Status& status) TFMPI_REQUIRES(communication_thread_);

  const std::unique_ptr<Transport> transport_ TFMPI_PT_GUARDED_BY(communication_thread_);
  const EngineOptions options_;
  Queue queue_;

  // What other threads ask of the communication thread.
  std::atomic<bool> join_requested_{false};
  std::atomic<bool> stop_requested_{false};
  std::atomic<bool> leave_requested_{false};
  std::string leave_reason_;  // written before leave_requested_ is set
  std::atomic<bool> ended_{false};

  std::unique_ptr<Coordinator> coordinator_ TFMPI_GUARDED_BY(communication_thread_);  // rank 0 only
  ControlLinks links_ TFMPI_GUARDED_BY(communication_thread_);
  std::unique_ptr<Relay> relay_ TFMPI_GUARDED_BY(communication_thread_);  // who has some below it
  Fusion fusion_ TFMPI_GUARDED_BY(communication_thread_);
  // Messages so far, to each rank and from each (envelope.h).
  std::vector<uint32_t> sent_ TFMPI_GUARDED_BY(communication_thread_);
  std::vector<uint32_t> received_ TFMPI_GUARDED_BY(communication_thread_);
  ReadyList ready_list_ TFMPI_GUARDED_BY(communication_thread_);  // what is to be said next
  // Where it has voted, ready_list_ holds all that is expected.
  ResponseBypass bypass_ TFMPI_GUARDED_BY(communication_thread_);
  int told_ TFMPI_GUARDED_BY(communication_thread_) = 0;  // entries of names_ that are told
  // Read after a wait, and every few polls: exact enough for what takes milliseconds.
  TimePoint now_ TFMPI_GUARDED_BY(communication_thread_);
  bool joined_ TFMPI_GUARDED_BY(communication_thread_) = false;
  bool left_ TFMPI_GUARDED_BY(communication_thread_) = false;
  bool finished_ TFMPI_GUARDED_BY(communication_thread_) = false;
  Status failure_ TFMPI_GUARDED_BY(communication_thread_);
  NameTable names_ TFMPI_GUARDED_BY(communication_thread_);
  Drained drained_ TFMPI_GUARDED_BY(communication_thread_);  // while it is taken in
  // Of the response under way; and theirs: null, or empty, where this rank has no part in it.
  std::vector<FusionEntry> fusion_entries_ TFMPI_GUARDED_BY(communication_thread_);
  std::vector<NameTable::Entry*> entries_ TFMPI_GUARDED_BY(communication_thread_);
  // Errors agreed on for names that were not yet submitted here, of each name in their order.
  std::unordered_map<std::string, std::deque<Status>> early_errors_
      TFMPI_GUARDED_BY(communication_thread_);
  Standing told_standing_ TFMPI_GUARDED_BY(communication_thread_);
  bool asked_for_doing_ TFMPI_GUARDED_BY(communication_thread_) = false;
  TimePoint stood_at_ TFMPI_GUARDED_BY(communication_thread_);        // when it looked at that last
  bool stood_aside_ TFMPI_GUARDED_BY(communication_thread_) = false;  // has said so once
  uint64_t answers_ TFMPI_GUARDED_BY(communication_thread_) = 0;  // agreements that were no posts
  Stillness stillness_ TFMPI_GUARDED_BY(communication_thread_);
  LifeSigns life_signs_ TFMPI_GUARDED_BY(communication_thread_);
  TimePoint heard_of_coordinator_ TFMPI_GUARDED_BY(communication_thread_);  // of no use on rank 0
  TimePoint reported_silence_ TFMPI_GUARDED_BY(communication_thread_);
  CommunicationStats communication_stats_ TFMPI_GUARDED_BY(communication_thread_);
  ResponseNotes response_notes_ TFMPI_GUARDED_BY(communication_thread_){&communication_stats_};

  // Going on without ranks that have died; unused unless options_.go_on.
  ChangingTransport* const changing_ TFMPI_PT_GUARDED_BY(communication_thread_);
  History history_ TFMPI_GUARDED_BY(communication_thread_);
  CarefulReduction careful_ TFMPI_GUARDED_BY(communication_thread_);
  bool interrupted_ TFMPI_GUARDED_BY(communication_thread_) = false;  // failure_ may be mended
  bool given_up_ TFMPI_GUARDED_BY(communication_thread_) = false;     // it cannot be any more
  TimePoint looked_for_deaths_ TFMPI_GUARDED_BY(communication_thread_);
  std::deque<std::string> posts_under_way_ TFMPI_GUARDED_BY(communication_thread_);  // rank 0 only
  // early_errors_ of former groups, which nobody counts any more.
  std::unordered_map<std::string, std::deque<Status>> former_errors_
      TFMPI_GUARDED_BY(communication_thread_);
  // By generation that has ended and rank in it: the rank in the next; -1: it has died.
  std::vector<std::vector<int>> next_ranks_ TFMPI_GUARDED_BY(communication_thread_);
  std::atomic<uint64_t> generation_{0};
  std::string needs_all_;  // guarded by posted_mutex_

  Whereabouts whereabouts_;
  std::atomic<uint64_t> missed_{0};  // gradients that were averaged without this rank

  mutable std::mutex posted_mutex_;
  struct Posts {
    int64_t count = 0;
    std::vector<std::string> said;  // after the key, by number; empty if none ever said anything
  };
  std::unordered_map<std::string, Posts> posted_;  // by key; guarded by posted_mutex_
  Status shown_failure_;                           // too: failure_, for other threads
  std::atomic<uint64_t> posts_heard_{0};

  std::atomic<uint64_t> completed_{0};
  std::atomic<uint64_t> collectives_{0};
  std::atomic<uint64_t> bytes_{0};
  std::atomic<uint64_t> predicted_{0};
  std::atomic<uint64_t> messages_sent_{0};
  std::atomic<uint64_t> messages_received_{0};
  std::atomic<uint64_t> as_one_{0};

  std::function<void()> await_loop_;  // last: started when all else exists; null once it has ended
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_ENGINE_ENGINE_H_
