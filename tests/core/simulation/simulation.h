// All ranks of a job on one thread: real engines, over a transport, a clock and an order of their
// turns that a test decides.
//
// A rank is two actors: its engine's communication loop, and a script, which submits requests and
// waits for them. An actor runs until it waits, or comes to a point where what others do could make
// a difference: before it sends, votes, or looks for messages. Which of those that may go on does
// so is asked of `choose`; the same answers give the same run, to the bit. Time passes when nobody
// can go on, and as the test says.
//
// One thread; one simulation at a time, as it is the clock of the process.

#ifndef TFMPI_TESTS_CORE_SIMULATION_SIMULATION_H_
#define TFMPI_TESTS_CORE_SIMULATION_SIMULATION_H_

#include <cstdlib>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tensorflow_patches/core/engine/engine.h"
#include "tests/core/simulation/fiber.h"
#include "tests/core/simulation/inspector.h"

namespace tfmpi {

// What becomes of a message.
struct Fate {
  int copies = 1;
  Clock::duration latency{};
};

struct SimulationOptions {
  int ranks = 3;
  bool shared_word = true;  // as on one node
  bool may_poll = false;    // Transport::MayPoll
  // The transport is that of a node, with its rings and collectives, in memory that the ranks
  // share. What a rank sees there is not in the Fingerprint.
  bool node = false;
  // By rank: by way of whom messages go to rank 0, with so many nodes below each; empty: straight.
  // There is no shared word then, as between nodes.
  std::vector<int> leaders;
  int fan_out = 1;
  bool fingerprints = false;  // Simulation::Fingerprint will be asked for
  // One of so many ways on, at least two.
  std::function<int(int ways)> choose;
  // So often it may also choose, as the last way, that a wait's time is over although others could
  // go on.
  int time_skips = 0;
  Clock::duration longest_skip = std::chrono::milliseconds(20);
  // What follows may be null. How long an actor that has come to a point stays there.
  std::function<Clock::duration(int rank)> pause;
  // May change the bytes.
  std::function<Fate(int from, int to, std::string* bytes)> on_message;
  // Before an actor of this rank goes on. It may call Kill, Freeze and Break.
  std::function<void(int rank)> on_turn;
  // As a rank comes to a collective: what it ends with there, if not ok.
  std::function<Status(int rank)> on_collective;
  // Longer than any run that ends.
  Clock::duration horizon = std::chrono::seconds(300);
};

class Simulation final : public Clock::World {
 public:
  explicit Simulation(SimulationOptions options);
  ~Simulation();
  Simulation(const Simulation&) = delete;
  Simulation& operator=(const Simulation&) = delete;

  // Where the engine of `rank` goes; to be made before Run, and destroyed before the simulation.
  std::unique_ptr<Transport> CreateTransport(int rank);
  // EngineOptions::start_loop of that engine.
  std::function<std::function<void()>(const std::function<void()>&)> StartLoop(int rank);
  void AddScript(int rank, std::function<void()> script);

  // Until every actor has ended, but for those of ranks that were killed. Else who waits for what.
  std::string Run();
  // Ends every actor by an exception, where it is. To be called before engines are destroyed; in
  // the midst of a run by `choose`: Run then returns "".
  void Abandon();
  bool abandoned() const { return abandoning_; }

  // By a script: one of so many ways on, as `choose` says.
  int Choose(int ways);
  // By a script, or a transport: others may run. `where`: which of a script's points it is.
  void Point(int where = 0);
  // By a script. False if the deadline has passed.
  bool WaitUntil(const std::function<bool()>& there, TimePoint deadline = TimePoint::max());
  void CurrentWaitState(int where) { current_->where = where; }
  // For Fingerprint, by a script: what it has done, or seen, and goes on by. Of what stands in
  // Done, the order does not count.
  void Note(uint64_t what);
  void Done(uint64_t what);
  // For Fingerprint: how to look into the engine of a rank.
  void LookInto(int rank, const Engine* engine) { engines_[rank] = engine; }

  // The rank does nothing any more, and nobody is told.
  void Kill(int rank);
  void Freeze(int rank, TimePoint until);
  // Every operation of every rank fails from now on, as when the launcher has noticed a death.
  void Break(const std::string& reason);
  bool killed(int rank) const { return killed_[rank]; }

  // Of the state that all this is in: what each engine knows, or knew when it began its turn and
  // has seen since; what each script has noted; messages under way, the word, and the time. So runs
  // that differ only in the order of what does not touch each other come to equal states.
  uint64_t Fingerprint() const;
  // What should not happen: ranks in different collectives. "" if nothing did.
  const std::string& violation() const { return violation_; }
  // Messages that nobody has read.
  bool HasLeftMessages() const;
  uint64_t turns() const { return turns_; }
  // Whose actor runs.
  int rank() const { return current_->rank; }

  // Clock::World.
  TimePoint Now() override { return now_; }
  void Sleep(Clock::duration time) override;
  void Relax() override;
  void WaitForChange(const std::atomic<uint32_t>& word, uint32_t value,
                     Clock::duration limit) override;

 private:
  friend class SimulatedTransport;
  friend class NodeInSimulation;

  struct Abandoned {};
  struct Message {
    TimePoint there;
    uint64_t order;
    std::string bytes;
    uint64_t content = 0;  // without the number in its envelope
  };
  enum class Collective { kAllreduce, kAllgather, kBroadcast, kFinalize };
  // One rank's part in the collective under way.
  struct Part {
    Collective kind = Collective::kFinalize;
    const void* in = nullptr;
    void* out = nullptr;
    std::vector<size_t> sizes;  // allgather: bytes of each rank; broadcast: {bytes}
    Reduction reduction;        // allreduce
    int root = 0;               // broadcast

    bool Matches(const Part& other) const;
  };
  struct Actor {
    Actor(int rank, bool is_engine, std::function<void()> body);
    const int rank;
    const bool is_engine;
    Fiber fiber;
    std::function<bool()> there;  // null: it waits for nothing
    TimePoint deadline;
    TimePoint not_before;
    uint64_t history = 0;   // of an engine, since it began its turn
    uint64_t done = 0;      // of a script
    uint64_t choosing = 0;  // of a script: what it has chosen, and not done yet
    int where = 0;          // of a script
    bool rests = false;     // of an engine: between two turns
    int looks = 0;          // in a row at a word
    bool said = false;      // since it last looked for messages
  };

  Actor* AddActor(int rank, bool is_engine, std::function<void()> body);
  void Resume(Actor* actor);
  void YieldHere();
  bool IsOver(const Actor& actor) const { return actor.fiber.ended() || killed_[actor.rank]; }
  uint64_t FingerprintOf(const Actor& actor) const;
  bool MayGoOn(const Actor& actor) const;
  bool IsThere(const Actor& actor) const;
  // When something could change if nobody did anything.
  TimePoint NextEvent() const;
  TimePoint NextDeadline() const;
  std::string DescribeWaits() const;

  std::unique_ptr<Transport> CreateNodeTransport(int rank);  // node_in_simulation.cc

  // simulated_transport.cc: what transports of all ranks share.
  void Send(int from, int to, const std::string& bytes);
  bool HasMessage(int rank) const;
  void Receive(int rank, std::vector<ControlMessage>* inbox);
  Status Collect(int rank, Part part, TimePoint deadline);
  void Execute();

  const SimulationOptions options_;
  TimePoint now_;
  std::vector<const Engine*> engines_;  // by rank
  std::vector<std::unique_ptr<Actor>> actors_;
  Actor* current_ = nullptr;
  bool abandoning_ = false;
  int skips_ = 0;
  uint64_t turns_ = 0;
  std::vector<char> killed_;  // by rank
  std::string broken_;        // not empty: why
  std::string violation_;

  std::unique_ptr<char, decltype(&std::free)> node_memory_{nullptr, &std::free};
  std::atomic<uint64_t> word_{0};
  std::vector<std::atomic<int64_t>> numbers_;
  std::vector<char> woken_;                           // by rank
  std::vector<std::vector<std::deque<Message>>> to_;  // by receiver, then sender
  uint64_t messages_ = 0;
  std::vector<Part> parts_;
  std::vector<char> arrived_;
  int64_t generation_ = 0;
};

}  // namespace tfmpi

#endif  // TFMPI_TESTS_CORE_SIMULATION_SIMULATION_H_
