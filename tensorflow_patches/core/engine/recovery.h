// Continuing without ranks that have died: the survivors regroup, execute what some of them have
// already executed, and restart as a smaller group with the requests that are still pending.
//
// See docs/decisions/053. A result that a rank has already handed to its kernels is in its history,
// so ranks that were not that far get the same bits. Requests that no rank has executed are
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

// The parts of an engine that restart in a new group. All outlive the recovery.
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

  // Call it in each turn, so that a death fails the engine even if no operation has noticed it.
  void CheckForDeaths();
  // Collective over all living ranks, after a death or when every script has ended. Returns true
  // if every script has ended; the loop then ends.
  bool RegroupSurvivors();
  // Adapts a new request to the current group: it may have been created before a rank died.
  Status MapToCurrentGroup(Request* request);

 private:
  Status FailOrphanedBroadcast(Request* request, uint64_t generation);
  bool ReceivedStopReason();
  Report MakeReport();
  std::string DescribeDeaths(const Regrouping& regrouping) const;
  std::string ReasonToStop(const Regrouping& regrouping) const;
  void ContinueWith(std::unique_ptr<Transport> next, const Regrouping& regrouping);
  void CatchUp(const Regrouping& regrouping);
  void Replay(const Unit& unit);
  void AdaptPending(const Regrouping& regrouping);
  void RestartInNewGroup();

  EngineState* const state_;
  const RestartableParts parts_;
  History* const history_;
  TimePoint checked_for_deaths_;
  // By former generation and rank in it: the rank in the next generation; -1: it has died.
  std::vector<std::vector<int>> next_ranks_;
  // By generation, the last of which is the current one, and rank in it: the rank that the launcher
  // assigned, which users know.
  std::vector<std::vector<int>> launch_ranks_;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_ENGINE_RECOVERY_H_
