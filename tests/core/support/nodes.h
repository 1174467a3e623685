// Nodes of a test, whose ranks are threads: what they share, and their transports.

#ifndef TFMPI_TESTS_CORE_SUPPORT_NODES_H_
#define TFMPI_TESTS_CORE_SUPPORT_NODES_H_

#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <numeric>
#include <vector>

#include "tensorflow_patches/core/cpu/cores.h"
#include "tensorflow_patches/core/transport/node_transport.h"
#include "tests/core/support/ranks.h"

namespace tfmpi {

// `nodes` nodes of `per_node` ranks each, in their order, with their memory.
class Nodes {
 public:
  // `tree`: what is said to rank 0 goes by way of the nodes' first ranks.
  Nodes(int nodes, int per_node, const NodeOptions& options = NodeOptions(), bool tree = true)
      : per_node_(per_node), tree_(tree), options_(options) {
    const size_t bytes = NodeMemory::BytesFor(per_node);
    for (int n = 0; n < nodes; ++n) {
      memories_.emplace_back(std::aligned_alloc(kCacheLine, bytes), &std::free);
      std::memset(memories_.back().get(), 0, bytes);
    }
    buffers_.resize(nodes);
    for (int r = 0; r < per_node; ++r) rails_.push_back(std::make_unique<LocalGroup>(nodes));
  }

  NodeMemory MemoryOf(int rank) const {
    return NodeMemory(memories_[rank / per_node_].get(), rank % per_node_, per_node_,
                      CountCores(AllowedCores(), QuotaCores()));
  }

  // Buffers of a node's ranks lie in real segments, and not in one piece of memory that all of its
  // threads know by one address, so that ThreadSanitizer sees what they do there.
  void UseSegments() { segments_ = true; }
  // Before the ranks are made: this one cannot have its node's buffers.
  void FailBuffersOf(int rank) { without_buffers_ = rank; }

  // For Ranks: the transport of `rank` over `all`.
  std::unique_ptr<Transport> Wrap(std::unique_ptr<Transport> all, int rank) {
    std::vector<int> node_ranks(per_node_);
    std::iota(node_ranks.begin(), node_ranks.end(), rank / per_node_ * per_node_);
    std::unique_ptr<Transport> rail;
    if (memories_.size() > 1) rail = rails_[rank % per_node_]->CreateTransport(rank / per_node_);
    const int ranks = all->topology().size;
    std::vector<int> leaders;
    for (int r = 0; tree_ && r < ranks; ++r) leaders.push_back(r / per_node_ * per_node_);
    NodeOptions options = options_;
    if (!segments_) options.map_buffers = [this, rank](size_t bytes) { return Map(rank, bytes); };
    return MakeNodeTransport(std::move(all), std::move(rail), MemoryOf(rank), node_ranks, leaders,
                             options);
  }

  Ranks::Decorate Decorator() {
    return [this](std::unique_ptr<Transport> all, int rank) { return Wrap(std::move(all), rank); };
  }

 private:
  using Memory = std::unique_ptr<void, decltype(&std::free)>;

  char* Map(int rank, size_t bytes) {
    if (rank == without_buffers_) return nullptr;
    std::lock_guard<std::mutex> lock(mutex_);
    std::unique_ptr<Memory>& buffers = buffers_[rank / per_node_];
    constexpr size_t kPage = 4096;
    if (buffers == nullptr) {
      buffers = std::make_unique<Memory>(std::aligned_alloc(kPage, bytes), &std::free);
    }
    return static_cast<char*>(buffers->get());
  }

  const int per_node_;
  const bool tree_;
  const NodeOptions options_;
  bool segments_ = false;
  int without_buffers_ = -1;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Memory>> buffers_;  // by node; null: nobody has asked
  std::vector<Memory> memories_;
  std::vector<std::unique_ptr<LocalGroup>> rails_;
};

}  // namespace tfmpi

#endif  // TFMPI_TESTS_CORE_SUPPORT_NODES_H_
