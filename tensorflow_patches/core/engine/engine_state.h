// The state that the parts of an engine share: the transport, the options, the time, the progress
// of this rank, and whether it still communicates.
//
// Communication thread; after its end, the thread that joined it.

#ifndef TFMPI_CORE_ENGINE_ENGINE_STATE_H_
#define TFMPI_CORE_ENGINE_ENGINE_STATE_H_

#include <string>

#include "tensorflow_patches/core/engine/options.h"
#include "tensorflow_patches/core/engine/published.h"
#include "tensorflow_patches/core/engine/script_state.h"
#include "tensorflow_patches/core/observability/stats.h"
#include "tensorflow_patches/core/transport/membership.h"
#include "tensorflow_patches/core/transport/transport.h"

namespace tfmpi {

struct EngineState {
  // All outlive it.
  EngineState(Transport* transport, const EngineOptions* options, Published* published,
              ScriptState* script_state)
      : transport(transport),
        options(*options),
        published(published),
        script_state(script_state),
        stats(options->stats) {}

  int rank() const { return transport->topology().rank; }
  int size() const { return transport->topology().size; }
  // "rank 2/4"
  std::string Me() const { return "rank " + std::to_string(rank()) + "/" + std::to_string(size()); }
  // For an operation that begins at `now`.
  TimePoint Deadline() const { return now + options.collective_timeout; }

  // From now on nothing is communicated; the first failure is kept. Does nothing if `status` is ok.
  // The loop handles the consequences (Engine::HandleFailure), so every part must return to it.
  void Fail(const Status& status) {
    if (failure.ok()) failure = status;
  }
  // Like Fail, but the survivors of a death do not continue either (recovery.h), even if that death
  // has already failed the engine.
  void FailForGood(const Status& status) {
    given_up = true;
    if (!failure.ok() && !interrupted) return;
    interrupted = false;
    failure = status;
  }
  bool ok() const { return failure.ok(); }
  // Whether the failure was caused by the death of a rank, and the others can continue. Waits up to
  // 200 ms, because the death may become known only after the failure.
  bool CausedByDeath() const {
    constexpr std::chrono::milliseconds kBetweenLooks{10};
    constexpr int kLooks = 20;
    if (!options.shrink_on_fault || given_up) return false;
    for (int look = 0; look < kLooks; ++look) {
      if (transport->membership()->HasFailedRank()) return true;
      Clock::Sleep(kBetweenLooks);
    }
    return false;
  }

  Transport* const transport;
  const EngineOptions& options;
  Published* const published;
  ScriptState* const script_state;
  CommunicationStats stats;
  IdleDetector idle_detector;

  // Updated in each turn and every few polls, so accurate to milliseconds only.
  TimePoint now;
  bool joined = false;                 // this rank has no more requests
  bool left = false;                   // this rank stops with an error
  std::string leaving;                 // the reason
  bool finished = false;               // every rank has joined
  bool reported_no_gradients = false;  // this rank has reported at least once that it has none
  Status failure;
  bool interrupted = false;  // a rank has died, and the survivors will regroup
  bool given_up = false;     // they must not regroup any more
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_ENGINE_ENGINE_STATE_H_
