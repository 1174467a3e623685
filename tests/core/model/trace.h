// What the ranks of one run said and did, simulated or real, and a model of the agreement that it
// must fit: a few sets of names, which know nothing of how the coordinator and the votes work.

#ifndef TFMPI_TESTS_CORE_MODEL_TRACE_H_
#define TFMPI_TESTS_CORE_MODEL_TRACE_H_

#include <functional>
#include <string>
#include <vector>

#include "tensorflow_patches/core/engine/engine.h"

namespace tfmpi {

class Trace {
 public:
  // `tree`: a rank that fails says so to those below it, before rank 0 can tell why.
  explicit Trace(int ranks, bool tree = false) : ranks_(ranks), tree_(tree), events_(ranks) {}

  // EngineOptions::trace of this rank's engine. Lives as long as the trace; each rank has one.
  std::function<void(EngineOptions::Event, int, const std::string&)> Recorder(int rank);
  // When nothing is recorded any more. Where it does not fit, or "".
  std::string Check() const;
  // Of a run without stalls. A coordinator that hears the same, one message at a time, must decide
  // the same in the same order: so all that the explorer of the agreement knows of it holds of this
  // run, too. Where it does not, or "".
  std::string Replay() const;
  // Response lists with responses that rank 0 was told, and that were voted for.
  int response_lists() const { return Count(EngineOptions::Event::kResponseList); }
  int voted() const { return Count(EngineOptions::Event::kVoted); }

 private:
  struct Recorded {
    EngineOptions::Event event;
    int rank;
    std::string message;
  };

  int Count(EngineOptions::Event event) const;

  const int ranks_;
  const bool tree_;
  std::vector<std::vector<Recorded>> events_;  // by who recorded them
};

}  // namespace tfmpi

#endif  // TFMPI_TESTS_CORE_MODEL_TRACE_H_
