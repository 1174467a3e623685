// One seed: a job, an order of its ranks' turns, the times of its messages, and what fails when.
//
//   bazel run //tests/core/faults:schedules -- --seed=N        # what seed N is, and how it ends
//   bazel run //tests/core/faults:schedules -- --count=10000   # seeds 0 to 9999

#ifndef TFMPI_TESTS_CORE_FAULTS_SCHEDULE_H_
#define TFMPI_TESTS_CORE_FAULTS_SCHEDULE_H_

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tests/core/simulation/simulated_job.h"

namespace tfmpi {

enum class Fault {
  kNone,
  kSilentDeath,    // a rank does nothing any more, and nobody is told
  kNoticedDeath,   // the same, and some time later every operation fails
  kFreeze,         // a rank stands still for a while
  kLostMessage,    // one message does not come
  kDoubleMessage,  // one comes twice
  kBadMessage,     // some bytes of one are others
  kBadCollective,  // one collective fails on one rank
};
inline constexpr int kNumFaults = 8;
const char* Name(Fault fault);

// What one rank does otherwise than the others.
enum class Deviation {
  kNone,
  kOtherShape,  // at one step, for one name
  kMissingOne,  // at one step it does not ask for one name
  kWithdraws,   // it takes back what it has asked for
  kEndsEarly,   // it has fewer steps
  kLeaves,      // it stops with an error
};
inline constexpr int kNumDeviations = 6;
const char* Name(Deviation deviation);

// Drawn from a seed alone, alike on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  int Below(int bound) { return static_cast<int>(engine_() % static_cast<uint64_t>(bound)); }
  bool OneIn(int times) { return Below(times) == 0; }
  Clock::duration Micros(int below) { return std::chrono::microseconds(Below(below)); }

 private:
  std::mt19937_64 engine_;
};

struct Plan {
  uint64_t seed = 0;
  int ranks = 2;
  int steps = 1;
  bool node = false;  // the transport of a node; else a simulated one
  // Messages go by way of nodes of so many ranks, each with so many nodes below it; 0: straight.
  int per_node = 0;
  int fan_out = 1;
  bool shared_word = true;
  bool may_poll = false;
  bool bypass = true;
  bool goes_on = true;      // scripts go on after an error, or stop
  int slow = 0;             // microseconds that an actor may stay at a point
  int latency = 0;          // microseconds that a message may take
  std::vector<Item> items;  // of a step
  Fault fault = Fault::kNone;
  int victim = 0;
  int moment = 0;            // turn of the victim, number of the message or of the collective
  Clock::duration duration;  // until the death is noticed; of the freeze
  Deviation deviation = Deviation::kNone;
  int deviant = 0;
  int deviant_step = 0;

  std::string Describe() const;
};

Plan MakePlan(uint64_t seed);
// The same over a tree of nodes (core/transport/control_links.h).
Plan MakeTreePlan(uint64_t seed);

struct ScheduleResult {
  std::string wrong;    // "" if all is as it must be
  bool struck = false;  // the fault happened
  int failed = 0;       // ranks that ended with an error
  double seconds = 0;   // of the job's own time, from the fault to the last rank's end
  uint64_t turns = 0;
  std::vector<std::string> endings;  // by rank
};

ScheduleResult RunPlan(const Plan& plan);

}  // namespace tfmpi

#endif  // TFMPI_TESTS_CORE_FAULTS_SCHEDULE_H_
