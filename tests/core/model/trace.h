// Records what the ranks of one run, simulated or real, sent and did, and checks it against a model
// of the agreement: a few sets of names, without knowledge of how the coordinator and the votes
// work.

#ifndef TFMPI_TESTS_CORE_MODEL_TRACE_H_
#define TFMPI_TESTS_CORE_MODEL_TRACE_H_

#include <functional>
#include <string>
#include <vector>

#include "tensorflow_patches/core/engine/engine.h"

namespace tfmpi {

class Trace {
 public:
  // `tree`: a rank that fails tells the ranks below it, before rank 0 can give the reason.
  explicit Trace(int ranks, bool tree = false) : ranks_(ranks), tree_(tree), events_(ranks) {}

  // For EngineOptions::trace of this rank's engine, which the trace must outlive.
  std::function<void(EngineOptions::Event, int, const std::string&)> Recorder(int rank);
  // Call it when recording has ended. Describes where the run contradicts the model, or returns "".
  std::string Check() const;
  // For a run without stalls. A coordinator that receives the same messages one at a time must make
  // the same decisions in the same order: so everything that the explorer of the agreement shows is
  // true for this run, too. Describes where it is not, or returns "".
  std::string Replay() const;
  // The response lists with responses that rank 0 sent, and those that were voted for.
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
  std::vector<std::vector<Recorded>> events_;  // by the rank that recorded them
};

}  // namespace tfmpi

#endif  // TFMPI_TESTS_CORE_MODEL_TRACE_H_
