#include "tests/core/simulation/simulated_job.h"

#include <utility>

namespace tfmpi {
namespace {

uint64_t HashOf(const Referee::Call& call) {
  return Mix(std::hash<std::string>()(call.item.name), static_cast<uint64_t>(call.number));
}

}  // namespace

SimulatedJob::SimulatedJob(const SimulationOptions& simulation, const EngineOptions& engine)
    : world_(simulation),
      referee_(simulation.ranks),
      trace_(simulation.ranks, !simulation.leaders.empty()),
      endings_(simulation.ranks),
      left_(simulation.ranks),
      joins_(simulation.ranks),
      awaited_(simulation.ranks) {
  for (int rank = 0; rank < simulation.ranks; ++rank) {
    EngineOptions options = engine;
    options.start_loop = world_.StartLoop(rank);
    options.trace = trace_.Recorder(rank);
    engines_.push_back(std::make_unique<Engine>(world_.CreateTransport(rank), options));
    if (simulation.fingerprints) world_.LookInto(rank, engines_.back().get());
  }
}

// Engines are destroyed outside of their actors.
SimulatedJob::~SimulatedJob() {
  world_.Abandon();
  engines_.clear();
}

void SimulatedJob::AddScript(int rank, std::function<void()> script) {
  world_.AddScript(rank, std::move(script));
}

// The points of a script at which others may run.
enum Where { kAsks = 1, kAwaits, kWithdraws, kJoins, kLeaves };

std::vector<Referee::Call*> SimulatedJob::Ask(int rank, const std::vector<Item>& items) {
  world_.Point(kAsks);
  const std::vector<Referee::Call*> calls = referee_.Submit(engines_[rank].get(), rank, items);
  for (const Referee::Call* call : calls) world_.Done(HashOf(*call));
  return calls;
}

bool SimulatedJob::Await(int rank) {
  world_.SetPoint(kAwaits);
  world_.WaitUntil([this, rank] { return referee_.Done(rank); });
  bool well = true;
  uint64_t statuses = 0;
  for (size_t& i = awaited_[rank]; i < referee_.calls().size(); ++i) {
    const Referee::Call& call = referee_.calls()[i];
    if (call.rank != rank) continue;
    well &= call.status.ok();
    statuses += Mix(HashOf(call), static_cast<uint64_t>(call.status.code()));
  }
  world_.Note(statuses);
  return well;
}

void SimulatedJob::Withdraw(int rank, const Referee::Call& call) {
  world_.Point(kWithdraws);
  world_.Note(HashOf(call));
  engines_[rank]->Withdraw(call.ticket);
}

void SimulatedJob::Join(int rank) {
  world_.Point(kJoins);
  world_.Note(kJoins);
  referee_.Joins(rank);
  joins_[rank] = true;
  endings_[rank] = std::make_unique<Status>(engines_[rank]->Join());
}

void SimulatedJob::Leave(int rank, const std::string& why, Clock::duration grace) {
  world_.Point(kLeaves);
  world_.Note(kLeaves);
  referee_.Joins(rank);
  left_[rank] = true;
  engines_[rank]->Leave(why, grace);
}

}  // namespace tfmpi
