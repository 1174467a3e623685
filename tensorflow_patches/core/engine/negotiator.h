// How this rank agrees with the others on what to do next: it announces its requests, by a vote or
// in a ready list, and executes response lists. On rank 0 it owns the coordinator.
//
// Before it sends requests to the coordinator, it rejects the vote at the current position
// (bypass.h). Communication thread.

#ifndef TFMPI_CORE_ENGINE_NEGOTIATOR_H_
#define TFMPI_CORE_ENGINE_NEGOTIATOR_H_

#include <deque>
#include <memory>
#include <string>

#include "tensorflow_patches/core/agreement/bypass.h"
#include "tensorflow_patches/core/agreement/coordinator.h"
#include "tensorflow_patches/core/engine/engine_state.h"
#include "tensorflow_patches/core/engine/executor.h"
#include "tensorflow_patches/core/engine/messenger.h"
#include "tensorflow_patches/core/engine/pending_requests.h"
#include "tensorflow_patches/core/recovery/history.h"

namespace tfmpi {

class Negotiator {
 public:
  // All outlive it. `history`: null unless the ranks continue after deaths.
  Negotiator(EngineState* state, PendingRequests* pending, Messenger* messenger, Executor* executor,
             History* history);

  // Sends announcements, receives messages and executes what is agreed. Returns whether it did
  // anything or can do more immediately. `news`: the coordinator may have something to decide even
  // without messages.
  bool Exchange(bool news);
  // Sends all announcements. After it, no rank can commit a vote at the current position.
  void TellCoordinator();
  // Sends an announcement of this rank to the coordinator, or passes it to this rank's relay.
  void SendReadyList(const ReadyList& ready_list);
  // On rank 0: has the coordinator send the post to every rank.
  void NotePost(const std::string& post);
  // Executes what a response list has besides responses: withdrawals, errors, posts, the end.
  void ExecuteRest(const ResponseList& response_list);

  // Starts anew for the group that the transport now has; its rank 0 gets a new coordinator.
  void Restart();

  // Whether this rank's open vote has been decided, which no message announces.
  bool IsVoteDecided() const { return bypass_.voted() && bypass_.Look() != Outcome::kOpen; }
  bool voted() const { return bypass_.voted(); }
  // The number of agreements that completed requests.
  uint64_t answers() const { return answers_; }
  const ResponseBypass& bypass() const { return bypass_; }
  // Null except on rank 0.
  const Coordinator* coordinator() const { return coordinator_.get(); }

 private:
  template <typename List>
  void Trace(EngineOptions::Event event, int rank, const List& list) const;
  bool VoteOrAnnounce();
  void EndBypass();
  void ExecutePredicted();
  void RejectOutstanding();
  void Handle(const ControlMessage& message);
  bool ForwardDue();
  bool AnswerUnanimous(const Announcement& announcement);
  void OnReadyList(int rank, const ReadyList& ready_list);
  void Coordinate();
  void Answer(ResponseList response_list);
  void ExecuteResponseList(const ResponseList& response_list);
  void Execute(const ResponseList& response_list);

  EngineState* const state_;
  PendingRequests* const pending_;
  Messenger* const messenger_;
  Executor* const executor_;
  History* const history_;
  std::unique_ptr<Coordinator> coordinator_;  // rank 0 only
  ResponseBypass bypass_;
  uint64_t answers_ = 0;
  // On rank 0, if the ranks continue after deaths: posts that the coordinator has not yet sent.
  std::deque<std::string> unsent_posts_;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_ENGINE_NEGOTIATOR_H_
