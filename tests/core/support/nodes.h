// Nodes of a test, whose ranks are threads: their shared memory and their transports.

#ifndef TFMPI_TESTS_CORE_SUPPORT_NODES_H_
#define TFMPI_TESTS_CORE_SUPPORT_NODES_H_

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <utility>
#include <vector>

#include "tensorflow_patches/core/cpu/cores.h"
#include "tensorflow_patches/core/transport/node_transport.h"
#include "tests/core/support/decorated.h"
#include "tests/core/support/ranks.h"

namespace tfmpi {

// A transport whose topology says which ranks share a node.
class Placed : public Decorated {
 public:
  Placed(std::unique_ptr<Transport> next, int local_rank, int local_size, int nodes)
      : Decorated(std::move(next)), topology_(next_->topology()) {
    topology_.local_rank = local_rank;
    topology_.local_size = local_size;
    topology_.nodes = nodes;
  }
  const Topology& topology() const override { return topology_; }

 private:
  Topology topology_;
};

// Nodes with this many ranks each, in order, with their memory.
class Nodes {
 public:
  // `tree`: messages to rank 0 go through the nodes' leaders.
  Nodes(int nodes, int per_node, const NodeOptions& options = NodeOptions(), bool tree = true)
      : Nodes(std::vector<int>(nodes, per_node), options, tree) {}
  explicit Nodes(std::vector<int> sizes, const NodeOptions& options = NodeOptions(),
                 bool tree = true)
      : sizes_(std::move(sizes)), tree_(tree), options_(options) {
    for (const int size : sizes_) {
      const size_t bytes = NodeMemory::BytesFor(size);
      memories_.emplace_back(std::aligned_alloc(kCacheLine, bytes), &std::free);
      std::memset(memories_.back().get(), 0, bytes);
      nodes_.insert(nodes_.end(), size, static_cast<int>(memories_.size()) - 1);
    }
    const auto nodes = static_cast<int>(sizes_.size());
    const bool even = std::count(sizes_.begin(), sizes_.end(), sizes_[0]) == nodes;
    for (int r = 0; nodes > 1 && even && r < sizes_[0]; ++r) {
      rails_.push_back(std::make_unique<LocalGroup>(nodes));
    }
    buffers_.resize(nodes);
  }

  int size() const { return static_cast<int>(nodes_.size()); }
  int node_of(int rank) const { return nodes_[rank]; }
  int local_size(int rank) const { return sizes_[nodes_[rank]]; }
  int first_of(int rank) const {
    return std::accumulate(sizes_.begin(), sizes_.begin() + nodes_[rank], 0);
  }
  int local_rank(int rank) const { return rank - first_of(rank); }

  NodeMemory MemoryOf(int rank) const {
    return NodeMemory(memories_[nodes_[rank]].get(), local_rank(rank), local_size(rank),
                      CountCores(AllowedCores(), QuotaCores()));
  }

  // Puts a node's buffers into a real segment. Otherwise all of its threads have them at one
  // address, so that ThreadSanitizer sees the accesses.
  void UseSegments() { segments_ = true; }
  // This rank cannot map its node's buffers. Call it before the ranks are created.
  void FailBuffersOf(int rank) { without_buffers_ = rank; }
  // Decorates a rank's transport to the other nodes; call it before Wrap.
  void DecorateRails(const Ranks::Decorate& decorate) { decorate_rail_ = decorate; }

  // For Ranks: the transport of `rank` over `all`.
  std::unique_ptr<Transport> Wrap(std::unique_ptr<Transport> all, int rank) {
    std::vector<int> node_ranks(local_size(rank));
    std::iota(node_ranks.begin(), node_ranks.end(), first_of(rank));
    std::unique_ptr<Transport> rail;
    if (!rails_.empty()) rail = rails_[local_rank(rank)]->CreateTransport(nodes_[rank]);
    if (decorate_rail_) rail = decorate_rail_(std::move(rail), rank);
    std::vector<int> leaders;
    for (int r = 0; tree_ && r < size(); ++r) leaders.push_back(first_of(r));
    NodeOptions options = options_;
    if (!segments_) options.map_buffers = [this, rank](size_t bytes) { return Map(rank, bytes); };
    auto placed = std::make_unique<Placed>(std::move(all), local_rank(rank), local_size(rank),
                                           static_cast<int>(sizes_.size()));
    return MakeNodeTransport(std::move(placed), std::move(rail), MemoryOf(rank), node_ranks,
                             leaders, options);
  }

  Ranks::Decorate Decorator() {
    return [this](std::unique_ptr<Transport> all, int rank) { return Wrap(std::move(all), rank); };
  }

 private:
  using Memory = std::unique_ptr<void, decltype(&std::free)>;

  char* Map(int rank, size_t bytes) {
    if (rank == without_buffers_) return nullptr;
    std::lock_guard<std::mutex> lock(mutex_);
    std::unique_ptr<Memory>& buffers = buffers_[nodes_[rank]];
    constexpr size_t kPage = 4096;
    if (buffers == nullptr) {
      buffers = std::make_unique<Memory>(std::aligned_alloc(kPage, bytes), &std::free);
    }
    return static_cast<char*>(buffers->get());
  }

  const std::vector<int> sizes_;
  const bool tree_;
  const NodeOptions options_;
  std::vector<int> nodes_;  // by rank
  bool segments_ = false;
  int without_buffers_ = -1;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Memory>> buffers_;  // by node; null: not requested yet
  std::vector<Memory> memories_;
  std::vector<std::unique_ptr<LocalGroup>> rails_;
  Ranks::Decorate decorate_rail_;
};

}  // namespace tfmpi

#endif  // TFMPI_TESTS_CORE_SUPPORT_NODES_H_
