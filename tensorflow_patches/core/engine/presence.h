// Whether the ranks that this one waits for are alive: its peers, while some rank waits for the
// others' scripts to end (heartbeats.h), and rank 0, while it has not answered.
//
// Communication thread.

#ifndef TFMPI_CORE_ENGINE_PRESENCE_H_
#define TFMPI_CORE_ENGINE_PRESENCE_H_

#include <string>

#include "tensorflow_patches/core/engine/engine_state.h"
#include "tensorflow_patches/core/engine/messenger.h"
#include "tensorflow_patches/core/engine/pending_requests.h"

namespace tfmpi {

class Presence {
 public:
  // All outlive it.
  Presence(EngineState* state, const PendingRequests* pending, Messenger* messenger)
      : state_(state), pending_(pending), messenger_(messenger) {}

  // Call both in each turn in which there is nothing else to do. They may fail the engine.
  void CheckPeers();
  // Detects that rank 0, which ends stalls, does not answer at all. Does nothing on rank 0.
  void CheckCoordinator();

 private:
  void CheckPeer(int rank);
  void ReportSilence(const std::string& unanswered, TimePoint since);

  EngineState* const state_;
  const PendingRequests* const pending_;
  Messenger* const messenger_;
  TimePoint reported_silence_;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_ENGINE_PRESENCE_H_
