// The product's transport of a node in a simulation, which makes the waits and injects the faults
// of messages and collectives.

#include <cstring>
#include <numeric>
#include <utility>

#include "tensorflow_patches/core/transport/node_transport.h"
#include "tests/core/simulation/simulated_transport.h"
#include "tests/core/support/decorated.h"

namespace tfmpi {

class NodeInSimulation : public Decorated {
 public:
  NodeInSimulation(std::unique_ptr<Transport> node, Simulation* world)
      : Decorated(std::move(node)), world_(world) {}

  Status Send(int peer, const std::string& bytes) override {
    world_->Point();
    if (world_->current_ != nullptr) world_->current_->said = true;
    std::string changed = bytes;
    Fate fate;
    if (world_->options_.on_message && !world_->abandoning_) {
      fate = world_->options_.on_message(topology().rank, peer, &changed);
    }
    Status status = Broken();
    for (int copy = 0; copy < fate.copies && status.ok(); ++copy) {
      status = next_->Send(peer, changed);
    }
    return status;
  }
  Status Receive(std::vector<ControlMessage>* inbox) override {
    if (world_->current_ != nullptr) {
      if (world_->current_->said || world_->options_.may_poll) world_->Point();
      world_->current_->said = false;
    }
    const Status status = Broken();
    return status.ok() ? next_->Receive(inbox) : status;
  }
  bool MayPoll() const override { return world_->options_.may_poll; }
  std::atomic<uint64_t>* SharedWord() override {
    return world_->options_.shared_word ? next_->SharedWord() : nullptr;
  }
  std::atomic<int64_t>* SharedNumbers(int rank) override {
    world_->Point();  // it is about to vote
    return next_->SharedNumbers(rank);
  }
  Status Allreduce(const void* in, void* out, const Reduction& reduction,
                   TimePoint deadline) override {
    const Status status = Begin();
    return status.ok() ? next_->Allreduce(in, out, reduction, deadline) : status;
  }
  Status Allgather(const void* in, void* out, const std::vector<size_t>& bytes,
                   TimePoint deadline) override {
    const Status status = Begin();
    return status.ok() ? next_->Allgather(in, out, bytes, deadline) : status;
  }
  Status Broadcast(void* data, size_t bytes, int root, TimePoint deadline) override {
    const Status status = Begin();
    return status.ok() ? next_->Broadcast(data, bytes, root, deadline) : status;
  }

 private:
  Status Broken() const {
    return world_->broken_.empty() ? Status() : Status(Code::kUnavailable, world_->broken_);
  }
  Status Begin() const {
    if (world_->options_.on_collective && !world_->abandoning_) {
      const Status status = world_->options_.on_collective(topology().rank);
      if (!status.ok()) return status;
    }
    return Broken();
  }

  Simulation* const world_;
};

std::unique_ptr<Transport> Simulation::CreateNodeTransport(int rank) {
  const int ranks = options_.ranks;
  if (node_memory_ == nullptr) {
    const size_t bytes = (NodeMemory::BytesFor(ranks) + kCacheLine - 1) / kCacheLine * kCacheLine;
    node_memory_.reset(static_cast<char*>(std::aligned_alloc(kCacheLine, bytes)));
    std::memset(node_memory_.get(), 0, NodeMemory::BytesToClear(ranks));
  }
  std::vector<int> node_ranks(ranks);
  std::iota(node_ranks.begin(), node_ranks.end(), 0);
  // One core, so that a rank that waits lets the others run.
  const NodeMemory memory(node_memory_.get(), rank, ranks, 1);
  return std::make_unique<NodeInSimulation>(
      MakeNodeTransport(std::make_unique<SimulatedTransport>(this, rank), nullptr, memory,
                        node_ranks, /*leaders=*/{}, NodeOptions()),
      this);
}

}  // namespace tfmpi
