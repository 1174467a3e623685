// Explores every run of a simulated job, except runs that differ only in the order of independent
// events.
//
// Depth first: a run takes the first alternative at each new choice; the next run takes another one
// at the last choice that has one left. A run ends early if it reaches a known state.

#ifndef TFMPI_TESTS_CORE_EXPLORE_EXPLORER_H_
#define TFMPI_TESTS_CORE_EXPLORE_EXPLORER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/core/simulation/simulated_job.h"

namespace tfmpi {

struct Scenario {
  std::string name;
  SimulationOptions simulation;
  EngineOptions engine;
  // Adds each rank's script to a new job. Unless `from_the_start`, events have only one order until
  // a script calls `begin`.
  std::function<void(SimulatedJob* job, const std::function<void()>& begin)> prepare;
  // After a complete run: a violation, or "".
  std::function<std::string(const SimulatedJob& job)> judge;
  bool from_the_start = true;
};

struct Exploration {
  uint64_t states = 0;
  uint64_t runs = 0;
  uint64_t to_the_end = 0;  // of these, the complete ones
  uint64_t turns = 0;       // of actors, in total
  bool complete = false;    // false: stopped at `most_states`, or at a violation
  std::string wrong;        // "" if nothing is wrong
  std::vector<int> ways;    // the choices that lead to it
};

Exploration Explore(const Scenario& scenario, uint64_t most_states);
// One run with these choices, followed by first alternatives. Returns what is wrong, or "".
std::string Replay(const Scenario& scenario, const std::vector<int>& ways);

}  // namespace tfmpi

#endif  // TFMPI_TESTS_CORE_EXPLORE_EXPLORER_H_
