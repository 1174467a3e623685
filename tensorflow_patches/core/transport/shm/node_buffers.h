// A buffer of each rank of a node, in memory that all of them see: for data that comes and goes by
// itself, as a GPU copies it.
//
// Each rank's data lies in its own buffer. A reduction leaves there this rank's share of the
// result, and who wants all of it reads each share from the buffer of the rank that reduced it. So
// no host copies anything.
//
// Communication thread only; all ranks make the same calls in one order. After a failure the memory
// is of no more use. Whoever lets data come and go knows when a peer may still read a buffer.

#ifndef TFMPI_CORE_TRANSPORT_SHM_NODE_BUFFERS_H_
#define TFMPI_CORE_TRANSPORT_SHM_NODE_BUFFERS_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tensorflow_patches/core/base/status.h"
#include "tensorflow_patches/core/transport/shm/node_collectives.h"

namespace tfmpi {

class NodeBuffers {
 public:
  struct Options {
    // Of each rank.
    size_t bytes = 0;
    // Of several nodes: reduces in place what the ranks of this number hold, one of each node.
    std::function<Status(char* data, const Reduction& reduction, TimePoint deadline)> between;
    // For tests, in place of a segment: so much memory, the same for all ranks of a node, or null
    // on one that cannot have it.
    std::function<char*(size_t bytes)> map;
  };

  // Collective over the node, whose collectives must outlive it. Where a rank cannot have the
  // memory, no rank of the node gets it, and `why` says the reason.
  static Status Make(NodeCollectives* node, const Options& options, TimePoint deadline,
                     std::unique_ptr<NodeBuffers>* made, std::string* why);
  ~NodeBuffers();
  NodeBuffers(const NodeBuffers&) = delete;
  NodeBuffers& operator=(const NodeBuffers&) = delete;

  // All of them, for who has to make them known.
  char* memory() const { return memory_; }
  size_t bytes() const { return options_.bytes * static_cast<size_t>(ranks()); }
  // Of a rank of the node.
  char* of(int rank) const { return memory_ + static_cast<size_t>(rank) * options_.bytes; }
  int rank() const { return node_->rank(); }
  int ranks() const { return node_->ranks(); }

  // Of what begins at `offset` of each buffer. When it returns, all shares are there.
  Status Allreduce(size_t offset, const Reduction& reduction, TimePoint deadline);
  // First element of a rank's share.
  size_t ShareStart(size_t count, int rank) const { return node_->ShareStart(count, rank); }
  // Until all ranks of the node have called it.
  Status Barrier(TimePoint deadline) { return node_->Barrier(deadline); }

 private:
  NodeBuffers(NodeCollectives* node, const Options& options) : node_(node), options_(options) {}

  NodeCollectives* const node_;
  const Options options_;
  char* memory_ = nullptr;
  std::vector<char*> data_;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_TRANSPORT_SHM_NODE_BUFFERS_H_
