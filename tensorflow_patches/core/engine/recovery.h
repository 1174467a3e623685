// Going on without ranks that have died: those that are left meet, do alike what some of them have
// done of what was agreed, and begin anew as a smaller group with what is still pending.
//
// docs/decisions/053. What a rank has handed to its kernels is in its history with its result, so
// that those that had not come so far get the same bits; what nobody has done is nobody's, and is
// announced again. Communication thread.

#ifndef TFMPI_CORE_ENGINE_RECOVERY_H_
#define TFMPI_CORE_ENGINE_RECOVERY_H_

#include <memory>
#include <string>
#include <vector>

#include "tensorflow_patches/core/engine/engine_state.h"
#include "tensorflow_patches/core/engine/executor.h"
#include "tensorflow_patches/core/engine/messenger.h"
#include "tensorflow_patches/core/engine/negotiator.h"
#include "tensorflow_patches/core/engine/pending_requests.h"
#include "tensorflow_patches/core/engine/wait_state_reporter.h"
#include "tensorflow_patches/core/recovery/recoverable_reduction.h"
#include "tensorflow_patches/core/recovery/survivors.h"
#include "tensorflow_patches/core/recovery/switchable_transport.h"

namespace tfmpi {

// What of an engine begins anew with a group of other ranks. All outlive the recovery.
struct RestartableParts {
  SwitchableTransport* transport;
  RecoverableReduction* reduction;
  PendingRequests* pending;
  Messenger* messenger;
  Executor* executor;
  Negotiator* negotiator;
  WaitStateReporter* wait_state_reporter;
};

class Recovery {
 public:
  Recovery(EngineState* state, const RestartableParts& parts)
      : state_(state), parts_(parts), history_(parts.reduction->history()), launch_ranks_(1) {
    for (int rank = 0; rank < state->size(); ++rank) launch_ranks_[0].push_back(rank);
  }

  // In each turn: a death that no operation has run into fails the engine, too.
  void CheckForDeaths();
  // With all ranks that live: where one has died, or when every script has ended. True if they
  // have, and the loop ends.
  bool RegroupSurvivors();
  // A request that has come may have been made before a rank died.
  Status MapToCurrentGroup(Request* request);

 private:
  Status FailOrphanedBroadcast(Request* request, uint64_t group);
  bool ReceivedStopReason();
  Report MakeReport();
  std::string DescribeDeaths(const Regrouping& regrouping) const;
  std::string ReasonToStop(const Regrouping& regrouping) const;
  void ContinueWith(std::unique_ptr<Transport> next, const Regrouping& regrouping);
  void CatchUp(const Regrouping& regrouping);
  void Replay(const Unit& unit);
  void CompleteWithdrawn(const Regrouping& regrouping);
  void RestartInNewGroup();

  EngineState* const state_;
  const RestartableParts parts_;
  History* const history_;
  TimePoint checked_for_deaths_;
  // By generation that has ended and rank in it: the rank in the next; -1: it has died.
  std::vector<std::vector<int>> next_ranks_;
  // By generation, the last of which lives, and rank in it: the launcher's number, by which users
  // know it.
  std::vector<std::vector<int>> launch_ranks_;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_ENGINE_RECOVERY_H_
