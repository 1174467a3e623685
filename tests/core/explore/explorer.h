// Every run of a simulated job that differs in more than the order of what does not touch each
// other.
//
// Depth first: a run goes the first way wherever nothing is chosen yet; the next one goes another
// way at the last choice that has one left. A run ends early where it comes to a state that has
// been met before.

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
  // Adds each rank's script to a new job. What happens before Explorer's user calls `begin`, on
  // whichever rank, has one order only.
  std::function<void(SimulatedJob* job, const std::function<void()>& begin)> prepare;
  // After a run to its end: what must not be, or "".
  std::function<std::string(const SimulatedJob& job)> judge;
  // Choices are explored from the start; else from the first call of `begin` on.
  bool from_the_start = true;
};

struct Exploration {
  uint64_t states = 0;
  uint64_t runs = 0;
  uint64_t to_the_end = 0;  // of these
  uint64_t turns = 0;       // of actors, in all
  bool complete = false;    // else it stopped at `most_states`, or at what is wrong
  std::string wrong;        // "" if nothing is
  std::vector<int> ways;    // that lead there
};

Exploration Explore(const Scenario& scenario, uint64_t most_states);
// One run, by these ways and then the first ones.
std::string Replay(const Scenario& scenario, const std::vector<int>& ways);

}  // namespace tfmpi

#endif  // TFMPI_TESTS_CORE_EXPLORE_EXPLORER_H_
