// What the parts of an engine share: what they work with, the time, how far this rank has come, and
// whether it still communicates.
//
// Communication thread; when that has ended, whoever has joined it.

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
  // Of an operation that begins.
  TimePoint Deadline() const { return now + options.collective_timeout; }

  // Unless `status` is ok, or there is a failure: from now on nothing is communicated. What follows
  // from it the loop sees to (Engine::EndByFailure), to which every part therefore returns.
  void Fail(const Status& status) {
    if (failure.ok()) failure = status;
  }
  // Nor do those that are left go on without a rank that has died.
  void FailForGood(const Status& status) {
    if (!failure.ok() && !interrupted) return;
    given_up = true;
    interrupted = false;
    failure = status;
  }
  bool ok() const { return failure.ok(); }
  // Whether what has failed has failed because a rank has died, and the others can go on. That may
  // be heard of after it.
  bool Interrupts() const {
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

  // Read after a wait, and every few polls: exact enough for what takes milliseconds.
  TimePoint now;
  bool joined = false;                 // this rank has no more requests
  bool left = false;                   // it stops
  std::string leaving;                 // why
  bool finished = false;               // every rank has joined
  bool reported_no_gradients = false;  // this rank has once said that it has no gradients to give
  Status failure;
  bool interrupted = false;  // it may be mended: those that are left meet
  bool given_up = false;     // they will not any more
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_ENGINE_ENGINE_STATE_H_
