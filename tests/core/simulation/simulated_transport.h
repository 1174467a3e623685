// The transport of a simulated rank.

#ifndef TFMPI_TESTS_CORE_SIMULATION_SIMULATED_TRANSPORT_H_
#define TFMPI_TESTS_CORE_SIMULATION_SIMULATED_TRANSPORT_H_

#include "tests/core/simulation/simulation.h"

namespace tfmpi {

class SimulatedTransport : public Transport {
 public:
  SimulatedTransport(Simulation* world, int rank) : world_(world) {
    const int ranks = world->options_.ranks;
    topology_ = {rank, ranks, rank, ranks, 1, ranks};
  }

  const Topology& topology() const override { return topology_; }
  std::string description() const override { return "simulated"; }

  ControlLinks links() const override {
    const SimulationOptions& options = world_->options_;
    if (options.leaders.empty()) return Transport::links();
    return MakeTree(topology_.rank, options.leaders, options.fan_out);
  }
  Status Send(int peer, const std::string& bytes) override {
    world_->Point();
    if (!world_->broken_.empty()) return Status(Code::kUnavailable, world_->broken_);
    world_->Send(topology_.rank, peer, bytes);
    return Status();
  }
  Status Receive(std::vector<ControlMessage>* inbox) override {
    // Others may send between this rank's last message or vote and what it receives now.
    if (world_->current_ != nullptr && (world_->current_->said || world_->options_.may_poll)) {
      world_->Point();
    }
    if (!world_->broken_.empty()) return Status(Code::kUnavailable, world_->broken_);
    world_->Receive(topology_.rank, inbox);
    return Status();
  }
  void Wait(Clock::duration limit, bool, const std::function<bool()>& ready) override {
    const int rank = topology_.rank;
    if (world_->current_ != nullptr) world_->current_->rests = true;
    world_->WaitUntil(
        [this, rank, &ready] {
          return world_->woken_[rank] != 0 || world_->HasMessage(rank) || ready();
        },
        world_->now_ + limit);
    world_->woken_[rank] = 0;
  }
  bool MayPoll() const override { return world_->options_.may_poll; }
  void Wake() override { world_->woken_[topology_.rank] = 1; }

  std::atomic<uint64_t>* SharedWord() override {
    const SimulationOptions& options = world_->options_;
    return options.shared_word && options.leaders.empty() ? &world_->word_ : nullptr;
  }
  std::atomic<int64_t>* SharedNumbers(int rank) override {
    world_->Point();  // it is about to vote
    if (world_->current_ != nullptr) world_->current_->said = true;
    return &world_->numbers_[static_cast<size_t>(rank) * kSharedNumbers];
  }
  void WakePeers() override {
    for (int rank = 0; rank < topology_.size; ++rank) {
      if (rank != topology_.rank) world_->woken_[rank] = 1;
    }
  }

  Status Allreduce(const void* in, void* out, const Reduction& reduction,
                   TimePoint deadline) override {
    Simulation::Part part = {Simulation::Collective::kAllreduce, in, out, {}, reduction, 0};
    return world_->Collect(topology_.rank, std::move(part), deadline);
  }
  Status Allgather(const void* in, void* out, const std::vector<size_t>& bytes,
                   TimePoint deadline) override {
    Simulation::Part part = {Simulation::Collective::kAllgather, in, out, bytes, Reduction(), 0};
    return world_->Collect(topology_.rank, std::move(part), deadline);
  }
  Status Broadcast(void* data, size_t bytes, int root, TimePoint deadline) override {
    Simulation::Part part = {
        Simulation::Collective::kBroadcast, data, data, {bytes}, Reduction(), root};
    return world_->Collect(topology_.rank, std::move(part), deadline);
  }
  Status Finalize() override {
    return world_->Collect(topology_.rank, Simulation::Part(),
                           world_->now_ + std::chrono::seconds(30));
  }

 private:
  Simulation* const world_;
  Topology topology_;
};

}  // namespace tfmpi

#endif  // TFMPI_TESTS_CORE_SIMULATION_SIMULATED_TRANSPORT_H_
