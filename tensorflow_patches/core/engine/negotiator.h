// How this rank agrees with the others on what is done next: it says what it has, as a vote or in a
// ready list, and does what response lists say. On rank 0 it has the coordinator.
//
// At one position a rank votes (bypass.h), or tells the coordinator. Communication thread.

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
  // All outlive it. `history`: null unless the ranks go on without those that die.
  Negotiator(EngineState* state, PendingRequests* pending, Messenger* messenger, Executor* executor,
             History* history);

  // Says what there is to say, hears what has come, and does what is agreed on. True if anything
  // was done. `news`: the coordinator has some, beside messages.
  bool Exchange(bool news);
  // All that is to be said. Nobody votes any more at the position where this ends.
  void TellCoordinator();
  // What this rank says to the coordinator.
  void SendReadyList(const ReadyList& ready_list);
  // On rank 0: every rank is told so.
  void NotePost(const std::string& post);
  // What stands in a response list beside its responses.
  void ExecuteRest(const ResponseList& response_list);

  // In the group that the transport is of now: the coordinator is that of its first rank.
  void Restart();

  // The others' votes, which no message tells of, may have come.
  bool MayBeDecided() const { return bypass_.voted() && bypass_.Look() != Outcome::kOpen; }
  bool voted() const { return bypass_.voted(); }
  // Agreements so far that were no mere posts.
  uint64_t answers() const { return answers_; }
  const ResponseBypass& bypass() const { return bypass_; }
  // Null but on rank 0.
  const Coordinator* coordinator() const { return coordinator_.get(); }

 private:
  bool VoteOrAnnounce();
  void EndBypass();
  void ExecutePredicted();
  void RejectOutstanding();
  void Handle(const ControlMessage& message);
  bool ForwardDue();
  void OnAnnouncement(const Announcement& announcement);
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
  // On rank 0, if the ranks go on without those that die: what the coordinator has not said yet.
  std::deque<std::string> posts_under_way_;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_ENGINE_NEGOTIATOR_H_
