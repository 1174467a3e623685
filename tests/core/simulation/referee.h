// Hands in requests for the ranks of a simulation, and says what must not have come out.
//
// What a rank hands in tells which rank it is and how often it has asked for that name, so a sum
// tells whose data is in it, and which. Then, whatever the turns and whatever has failed:
//
//   - a request ends once;
//   - what ends well holds this request's own data, and of each other rank at most one request's;
//   - all ranks whose requests met in it saw the same ones;
//   - only a rank whose script has ended may be missing, and an average is divided by the others.

#ifndef TFMPI_TESTS_CORE_SIMULATION_REFEREE_H_
#define TFMPI_TESTS_CORE_SIMULATION_REFEREE_H_

#include <deque>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "tests/core/simulation/simulation.h"

namespace tfmpi {

// What is asked for under one name.
struct Item {
  std::string name;
  OpKind kind = OpKind::kAllreduce;
  bool average = false;  // of float32; else a sum of int64
  int more = 0;          // elements beyond what is needed; a rank that has others disagrees
  int root = 0;          // broadcast
  bool twice = false;    // asked for again by whoever hears of its end, on the engine's own thread
};

class Referee {
 public:
  explicit Referee(int ranks) : ranks_(ranks), joins_(ranks) {}

  struct Call {
    int rank = 0;
    int number = 0;  // of this rank's under this name, from 0
    Item item;
    Ticket ticket = 0;
    bool done = false;
    Status status;

    std::vector<char> input;
    std::vector<char> output;
    std::vector<int64_t> rows;  // allgather
    std::set<int> joined;       // ranks whose scripts had ended when it was done
    std::map<int, int> met;     // by rank, the number of its request that is in the result
  };

  // Requests of one rank at once. They stay where they are.
  std::vector<Call*> Submit(Engine* engine, int rank, const std::vector<Item>& items);
  // This rank's script has ended: it will hand in nothing more.
  void Joins(int rank) { joins_[rank] = true; }

  bool Done(int rank) const;
  // What must not be, of all requests so far. "" if nothing is wrong. `alike`: no rank was late,
  // none was refused, so that each meets the others' of the same number.
  std::string Verdict(bool alike) const;
  const std::deque<Call>& calls() const { return calls_; }

 private:
  Request MakeRequest(Call* call);
  void Ended(Call* call, const Status& status);
  std::string Read(Call* call) const;
  std::string ReadSum(Call* call) const;
  std::string ReadRows(Call* call) const;

  const int ranks_;
  std::vector<bool> joins_;
  std::deque<Call> calls_;
  std::map<std::pair<int, std::string>, int> numbers_;
  std::string wrong_;
};

}  // namespace tfmpi

#endif  // TFMPI_TESTS_CORE_SIMULATION_REFEREE_H_
