// Tells the coordinator what this rank waits for, where that lasts: it finds ranks that wait for
// one another, and goes on without those that have no gradients to give.
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

  // In each turn in which there is nothing else to do. Tells, and returns true, if the coordinator
  // does not know. No word of it is a vote, or ends one.
  bool ReportWaitState();
  // Before anything else is said: the coordinator must hear that a wait is over before it hears
  // what comes after it.
  void ReportWaitEnd();
  // The coordinator is another one, and knows nothing.
  void Restart();

 private:
  WaitState CurrentWaitState();

  EngineState* const state_;
  const PendingRequests* const pending_;
  Negotiator* const negotiator_;
  WaitState reported_;
  int64_t asked_ = 0;     // so often had rank 0 asked, when it was told last, what the ranks do
  TimePoint checked_at_;  // when this rank looked at that last
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_ENGINE_WAIT_STATE_REPORTER_H_
