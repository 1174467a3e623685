// A job with simulated ranks: engines, scripts, and a referee between them.

#ifndef TFMPI_TESTS_CORE_SIMULATION_SIMULATED_JOB_H_
#define TFMPI_TESTS_CORE_SIMULATION_SIMULATED_JOB_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/core/model/trace.h"
#include "tests/core/simulation/referee.h"
#include "tests/core/simulation/simulation.h"

namespace tfmpi {

class SimulatedJob {
 public:
  SimulatedJob(const SimulationOptions& simulation, const EngineOptions& engine);
  ~SimulatedJob();

  int ranks() const { return static_cast<int>(engines_.size()); }
  Simulation& world() { return world_; }
  const Simulation& world() const { return world_; }
  Engine& engine(int rank) { return *engines_[rank]; }
  const Referee& referee() const { return referee_; }
  const Trace& trace() const { return trace_; }

  // Each rank has one.
  void AddScript(int rank, std::function<void()> script);
  // "" if every script came to its end.
  std::string Run() { return world_.Run(); }

  // For the script of `rank`:
  std::vector<Referee::Call*> Ask(int rank, const std::vector<Item>& items);
  // Waits until everything that this rank has requested has ended. True if everything since the
  // last Await ended with ok.
  bool Await(int rank);
  void Withdraw(int rank, const Referee::Call& call);
  void Join(int rank);
  void Leave(int rank, const std::string& why, Clock::duration grace = std::chrono::seconds(5));

  // The result of a rank's Join; null if it has not joined.
  const Status* joined(int rank) const { return endings_[rank].get(); }
  bool left(int rank) const { return left_[rank]; }
  // Whether its script has ended, or waits in Join.
  bool joins(int rank) const { return joins_[rank]; }

 private:
  Simulation world_;
  Referee referee_;
  Trace trace_;
  std::vector<std::unique_ptr<Engine>> engines_;
  std::vector<std::unique_ptr<Status>> endings_;
  std::vector<bool> left_;
  std::vector<bool> joins_;
  std::vector<size_t> awaited_;  // calls that Await has seen, by rank
};

}  // namespace tfmpi

#endif  // TFMPI_TESTS_CORE_SIMULATION_SIMULATED_JOB_H_
