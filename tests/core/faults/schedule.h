// One seed determines a job, the order of its ranks' turns, the times of its messages, and the
// faults.
//
//   bazel run //tests/core/faults:schedules -- --seed=N        # describes seed N and how it ends
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
  kSilentDeath,    // a rank stops, and no other rank is told
  kNoticedDeath,   // the same, and some time later every operation fails
  kFreeze,         // a rank stops for a while
  kLostMessage,    // one message does not arrive
  kDoubleMessage,  // one arrives twice
  kBadMessage,     // some bytes of one are changed
  kBadCollective,  // one collective fails on one rank
};
inline constexpr int kNumFaults = 8;
const char* Name(Fault fault);

// How one rank differs from the others.
enum class Deviation {
  kNone,
  kOtherShape,  // at one step, for one name
  kMissingOne,  // in one step it does not submit one name
  kWithdraws,   // it withdraws a request
  kEndsEarly,   // it has fewer steps
  kLeaves,      // it stops with an error
};
inline constexpr int kNumDeviations = 6;
const char* Name(Deviation deviation);

// Depends on the seed only, and is the same on every machine.
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
  // Messages go through nodes of this many ranks, each with `fan_out` nodes below it; 0: directly.
  int per_node = 0;
  int fan_out = 1;
  bool shared_word = true;
  bool may_poll = false;
  bool bypass = true;
  bool goes_on = true;      // whether scripts continue after an error
  int slow = 0;             // maximum time in microseconds of an actor at a point
  int latency = 0;          // maximum time in microseconds of a message
  std::vector<Item> items;  // of a step
  Fault fault = Fault::kNone;
  int victim = 0;
  int moment = 0;            // number of the victim's turn, of the message or of the collective
  Clock::duration duration;  // until the death is noticed; or of the freeze
  Deviation deviation = Deviation::kNone;
  int deviant = 0;
  int deviant_step = 0;

  std::string Describe() const;
};

Plan MakePlan(uint64_t seed);
// The same with a tree of nodes (core/transport/control_links.h).
Plan MakeTreePlan(uint64_t seed);

struct ScheduleResult {
  std::string wrong;    // "" if everything is correct
  bool struck = false;  // whether the fault happened
  int failed = 0;       // ranks that ended with an error
  double seconds = 0;   // of simulated time, from the fault to the end of the last rank
  uint64_t turns = 0;
  std::vector<std::string> endings;  // by rank
};

ScheduleResult RunPlan(const Plan& plan);

}  // namespace tfmpi

#endif  // TFMPI_TESTS_CORE_FAULTS_SCHEDULE_H_
