// All ranks of a job on one thread: real engines, with a transport, a clock and an order of turns
// that a test controls.
//
// A rank has two actors: its engine's communication loop, and a script, which submits requests and
// waits for them. An actor runs until it waits, or reaches a point where the actions of others
// could matter: before it sends, votes, or looks for messages. `choose` selects which of the actors
// that can run does so; the same choices give the same run, to the bit. Time passes when no actor
// can run, and as the test decides.
//
// One thread; one simulation at a time, since it is the clock of the process.

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

// What happens to a message.
struct Fate {
  int copies = 1;
  Clock::duration latency{};
};

struct SimulationOptions {
  int ranks = 3;
  bool shared_word = true;  // as on one node
  bool may_poll = false;    // Transport::MayPoll
  // The transport is that of a node, with its rings and collectives, in memory that the ranks
  // share. What a rank sees there is not part of the Fingerprint.
  bool node = false;
  // By rank: its node's leader, through which its messages go to rank 0, with `fan_out` nodes below
  // each leader. Then there is no shared word, as between nodes. Empty: messages go directly.
  std::vector<int> leaders;
  int fan_out = 1;
  bool fingerprints = false;  // Simulation::Fingerprint will be asked for
  // Chooses one of so many alternatives, at least two.
  std::function<int(int ways)> choose;
  // How often it may also choose, as the last alternative, that a wait times out although others
  // could run.
  int time_skips = 0;
  Clock::duration longest_skip = std::chrono::milliseconds(20);
  // The following may be null. How long an actor that has reached a point stays there.
  std::function<Clock::duration(int rank)> pause;
  // May change the bytes.
  std::function<Fate(int from, int to, std::string* bytes)> on_message;
  // Called before an actor of this rank runs. It may call Kill, Freeze and Break.
  std::function<void(int rank)> on_turn;
  // Called when a rank reaches a collective: the status with which it ends there, if not ok.
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

  // The transport for the engine of `rank`; create it before Run, and destroy it before the
  // simulation.
  std::unique_ptr<Transport> CreateTransport(int rank);
  // EngineOptions::start_loop of that engine.
  std::function<std::function<void()>(const std::function<void()>&)> StartLoop(int rank);
  void AddScript(int rank, std::function<void()> script);

  // Runs until every actor has ended, except those of killed ranks; else returns who waits for
  // what.
  std::string Run();
  // Ends every actor by an exception. Call it before engines are destroyed. If `choose` calls it,
  // the run ends, and Run returns "".
  void Abandon();
  bool abandoned() const { return abandoning_; }

  // Called by a script: one of so many alternatives, selected by `choose`.
  int Choose(int ways);
  // Called by a script or a transport: others may run. `where`: which of a script's points it is.
  void Point(int where = 0);
  // Called by a script. False if the deadline has passed.
  bool WaitUntil(const std::function<bool()>& there, TimePoint deadline = TimePoint::max());
  // Called by a script: as Point, but no other runs.
  void SetPoint(int where) { current_->where = where; }
  // For Fingerprint, called by a script: records what it has done or seen and depends on. The order
  // of the calls of Done does not matter.
  void Note(uint64_t what);
  void Done(uint64_t what);
  // For Fingerprint: how to look into the engine of a rank.
  void LookInto(int rank, const Engine* engine) { engines_[rank] = engine; }

  // The rank stops, and no other rank is told.
  void Kill(int rank);
  void Freeze(int rank, TimePoint until);
  // Every operation of every rank fails from now on, as when the launcher has noticed a death.
  void Break(const std::string& reason);
  bool killed(int rank) const { return killed_[rank]; }

  // A hash of the whole state: of each engine, or its state at the start of its turn and what it
  // has seen since; of what each script has noted; of messages in transit, the word, and the time.
  // So runs that differ only in the order of independent events reach equal states.
  uint64_t Fingerprint() const;
  // A violation: ranks in different collectives. "" if there was none.
  const std::string& violation() const { return violation_; }
  // Messages that nobody has read.
  bool HasLeftMessages() const;
  uint64_t turns() const { return turns_; }
  // The rank of the running actor.
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
    bool said = false;      // whether it has sent or voted since it last looked for messages
  };

  Actor* AddActor(int rank, bool is_engine, std::function<void()> body);
  void Resume(Actor* actor);
  void YieldHere();
  bool IsOver(const Actor& actor) const { return actor.fiber.ended() || killed_[actor.rank]; }
  uint64_t FingerprintOf(const Actor& actor) const;
  bool MayGoOn(const Actor& actor) const;
  bool IsThere(const Actor& actor) const;
  // The time at which something could change if no actor did anything.
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
