// Submits requests for the ranks of a simulation and checks the results.
//
// A rank's data identifies the rank and how often it has submitted that name, so a sum shows which
// requests of which ranks are in it. For any order of turns and any failures:
//
//   - a request ends once;
//   - the result of a request that ends with ok contains its own data, and that of at most one
//     request of each other rank;
//   - if two requests are in one result, their own results contain the same requests;
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

// What is requested under one name.
struct Item {
  std::string name;
  OpKind kind = OpKind::kAllreduce;
  bool average = false;  // of float32; else a sum of int64
  int more = 0;          // additional elements; a rank with another number disagrees
  int root = 0;          // broadcast
  bool twice = false;    // submitted again from its callback, on the engine's own thread
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

  // Submits requests of one rank together. The pointers stay valid.
  std::vector<Call*> Submit(Engine* engine, int rank, const std::vector<Item>& items);
  // This rank's script has ended and submits nothing more.
  void Joins(int rank) { joins_[rank] = true; }

  bool Done(int rank) const;
  // A violation among all requests so far, or "". `alike`: no rank was late and none was refused,
  // so each request matches the others' of the same number.
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
