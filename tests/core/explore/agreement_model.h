// A model of the agreement, small enough to explore every order of 3 ranks' actions on 3 tensors.
//
// The coordinator, the messages and the votes (consensus.h) are the product's own. What a rank
// announces and executes is modelled: the rules of core/engine/negotiator.cc, pending_requests.cc
// and executor.cc, without time, data and threads. explorer.h checks that the engine follows the
// same rules, with fewer ranks; trace.h checks it in real runs.

#ifndef TFMPI_TESTS_CORE_EXPLORE_AGREEMENT_MODEL_H_
#define TFMPI_TESTS_CORE_EXPLORE_AGREEMENT_MODEL_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow_patches/core/agreement/consensus.h"
#include "tensorflow_patches/core/agreement/coordinator.h"

namespace tfmpi {

struct AgreementScenario {
  std::string name;
  int ranks = 3;
  int tensors = 3;
  int rounds = 1;            // in each, each rank submits every tensor and waits for all
  bool votes = false;        // ranks have done a round before, and vote for the next one
  bool ends_early = false;   // the last rank may omit any requests of the last round
  bool withdraws = false;    // rank 1 may withdraw a request at any time, and submits it again
  bool differs = false;      // the last rank's first request of tensor 0 has another shape
  bool enqueues = false;     // a collective may return before the others have reached it
  bool told_singly = false;  // ranks announce each request separately, not several together
};

class AgreementModel {
 public:
  static constexpr int kMaxRanks = 3;
  static constexpr int kMaxTensors = 3;

  // The scenario must outlive it and its copies.
  explicit AgreementModel(const AgreementScenario* scenario);

  enum class Kind { kAsk, kWithdraw, kJoin, kSay, kReceive, kDecide, kReturn };
  struct Action {
    Kind kind;
    int rank;
    int what = 0;  // the tensor; for rank 0's kReceive the sender
  };
  // Everything that can happen next.
  std::vector<Action> Actions() const;
  void Take(const Action& action);
  std::string Describe(const Action& action) const;

  // A violation, or "". `ends`: nothing more can happen.
  std::string Wrong(bool ends) const;
  // Models with equal numbers continue identically.
  uint64_t State() const;

 private:
  // A tensor with its shape.
  struct Named {
    int tensor;
    bool other_shape;
  };
  struct Entry {
    bool pending = false;
    bool outstanding = false;
    bool other_shape = false;
    int number = 0;        // of this rank's requests so far, without those withdrawn
    int early_errors = 0;  // that answer requests not yet submitted
  };
  // A rank has a stack of tasks, which its communication thread does before anything else, the last
  // one first. Between actions, a rank with tasks is in a collective.
  struct Task {
    enum class Kind { kTell, kPredicted, kExecute, kEnd, kFail, kHear, kSendDecision, kRejectTold };
    Kind kind;
    int tensor = 0;
    ResponseList response_list;
    size_t at = 0;         // the next response
    bool arrived = false;  // whether this rank is in the collective of that response
  };
  struct Rank {
    int round = 0;
    unsigned to_ask = 0;  // a bit per tensor that it has not submitted yet
    std::array<Entry, kMaxTensors> entries;
    std::vector<Named> by_id;
    ReadyList ready_list;
    uint64_t position = 0;
    bool expects = false;
    bool voted = false;
    bool withdrew = false;
    bool joined = false;
    bool finished = false;
    size_t agreed = 0;   // items so far
    size_t arrived = 0;  // collectives so far, including the one that it is in
    std::vector<Task> tasks;
  };
  // For one item, the number of each rank's request that is in it; 0: none, -1: not known yet.
  struct Agreed {
    int tensor;
    int contributors;
    std::array<int, kMaxRanks> numbers;
  };
  enum class Ending { kWell, kCancelled, kError };

  static std::string NameOf(int tensor) { return std::string(1, static_cast<char>('a' + tensor)); }
  static int TensorOf(const std::string& name) { return name[0] - 'a'; }
  static NamedSignature NamedOf(const Named& named);
  bool NothingPending(const Rank& rank) const;
  bool MayJoin(int r) const;
  bool Fits(const Rank& rank) const;
  Consensus Votes() { return Consensus(scenario_->votes ? &word_.value : nullptr, ranks()); }
  int ranks() const { return scenario_->ranks; }
  unsigned all() const { return (1u << scenario_->tensors) - 1; }

  void Ask(int r, int tensor);
  void Say(int r);
  bool AllArrived(int r) const;
  void Begin(int r, Task task) { ranks_[r].tasks.push_back(std::move(task)); }
  void Work(int r);
  bool Do(int r, Task task);
  void Vote(int r);
  void Tell(int r);
  void SendReadyList(int r);
  void Decide();
  void Hear(int r, const ResponseList& response_list);
  void BeginHeard(int r, const ResponseList& response_list);
  void BeginPredicted(int r);
  void RejectOutstanding(int r);
  bool Execute(int r, Task task);
  void End(int r, const ResponseList& response_list);
  void EndAfterWithdrawals(int r, const ResponseList& response_list);
  void Agree(int r, const Response& response, const ResponseItem& item);
  void Complete(int r, int tensor, Ending ending);
  void GoOn(int r);
  void Blame(const std::string& wrong) {
    if (wrong_.empty()) wrong_ = wrong;
  }

  struct Word {
    Word() = default;
    Word(const Word& other) : value(other.value.load()) {}
    Word& operator=(const Word&) = delete;
    std::atomic<uint64_t> value{0};
  };

  const AgreementScenario* scenario_;
  Coordinator coordinator_;
  bool news_ = false;  // whether coordinator_ has received something since its last decision
  Word word_;
  std::array<Rank, kMaxRanks> ranks_;
  std::array<std::deque<std::string>, kMaxRanks> to_coordinator_, from_coordinator_;
  std::vector<Agreed> agreed_;
  std::string wrong_;
};

struct AgreementExploration {
  uint64_t states = 0;
  uint64_t transitions = 0;
  bool complete = false;
  std::string wrong;             // "" if nothing is wrong
  std::vector<std::string> way;  // the actions that lead to it
};

// Explores every order, depth first, until it finds a violation or `most_states`.
AgreementExploration ExploreAgreement(const AgreementScenario& scenario, uint64_t most_states);

}  // namespace tfmpi

#endif  // TFMPI_TESTS_CORE_EXPLORE_AGREEMENT_MODEL_H_
