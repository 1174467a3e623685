// Reports to the coordinator what this rank waits for, if the wait lasts: the coordinator detects
// ranks that wait for one another, and continues without those that have no gradients.
//
// Communication thread.

#ifndef TFMPI_CORE_ENGINE_WAIT_STATE_REPORTER_H_
#define TFMPI_CORE_ENGINE_WAIT_STATE_REPORTER_H_

#include "tensorflow_patches/core/engine/engine_state.h"
#include "tensorflow_patches/core/engine/negotiator.h"
#include "tensorflow_patches/core/engine/pending_requests.h"

namespace tfmpi {

class WaitStateReporter {
 public:
  // All outlive it.
  WaitStateReporter(EngineState* state, const PendingRequests* pending, Negotiator* negotiator)
      : state_(state), pending_(pending), negotiator_(negotiator) {}

  // Call it in each turn in which there is nothing else to do. At most every 20 ms, sends a report
  // and returns true if the coordinator does not know the current state. This does not end a vote.
  bool ReportWaitState();
  // Call it before other announcements: the coordinator must learn that a wait for a file is over
  // before it receives what follows. The end of any other wait follows from the announcement.
  void ReportWaitEnd();
  // For a new coordinator, which has no reports.
  void Restart();

 private:
  WaitState CurrentWaitState();

  EngineState* const state_;
  const PendingRequests* const pending_;
  Negotiator* const negotiator_;
  WaitState reported_;
  int64_t asked_ = 0;          // the number of posts of kRank0Waits at the time of the last report
  uint64_t posts_before_ = 0;  // posts heard before the current coordinator began to count them
  TimePoint checked_at_;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_ENGINE_WAIT_STATE_REPORTER_H_
