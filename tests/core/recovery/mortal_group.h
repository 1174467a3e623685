// Groups of simulated ranks that die, and the transport of each: what ULFM guarantees, in its most
// unfavourable form.
//
// Each rank notices a death after a time of its own. A rank that waits in an operation which all
// have reached may get its result or a failure; the root of a broadcast does not wait, so it may be
// ahead of the others.

#ifndef TFMPI_TESTS_CORE_RECOVERY_MORTAL_GROUP_H_
#define TFMPI_TESTS_CORE_RECOVERY_MORTAL_GROUP_H_

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "tensorflow_patches/core/transport/membership.h"
#include "tests/core/simulation/simulation.h"

namespace tfmpi {

// A process is identified by its rank in the first group, its `person`.
class MortalWorld {
 public:
  // `choose`: as SimulationOptions::choose. `slowness`: the longest time until a death is noticed.
  MortalWorld(Simulation* world, int ranks, std::function<int(int)> choose,
              Clock::duration slowness);
  ~MortalWorld();

  std::unique_ptr<Transport> CreateTransport(int person);
  void Kill(int person);
  // The persons of each group so far.
  std::vector<std::vector<int>> groups() const;
  // A violation: ranks in different operations. "" if there was none.
  const std::string& violation() const { return violation_; }

 private:
  friend class MortalTransport;
  struct Group;

  bool Lives(int person) const { return !world_->killed(person); }
  Group* NewGroup(const std::vector<int>& persons);

  Simulation* const world_;
  const std::function<int(int)> choose_;
  const Clock::duration slowness_;
  std::vector<TimePoint> died_;  // by person
  std::deque<std::unique_ptr<Group>> groups_;
  std::string violation_;
};

}  // namespace tfmpi

#endif  // TFMPI_TESTS_CORE_RECOVERY_MORTAL_GROUP_H_
