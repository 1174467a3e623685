// A buffer for each rank of a node, in memory that all of them can access, for data that is moved
// asynchronously, such as by a GPU.
//
// Each rank's data is in its own buffer. A reduction leaves each rank's share of the result in that
// rank's buffer; a rank that needs the whole result reads the shares from all buffers. So the CPUs
// reduce in place and copy nothing between buffers.
//
// Communication thread only; all ranks make the same calls in the same order. After a failure the
// memory is unusable. The caller must not overwrite a buffer that a peer may still be reading: if
// every rank calls Allreduce or Barrier only after its reads, all have ended when a call returns.

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
    // Per rank.
    size_t bytes = 0;
    // Reduces in place over the ranks with this local rank, one per node. Null: there is one node.
    std::function<Status(char* data, const Reduction& reduction, TimePoint deadline)> between;
    // For tests, replaces a segment: returns memory of this size, the same for all ranks of a node,
    // or null on a rank that cannot have it.
    std::function<char*(size_t bytes)> map;
  };

  // Collective over the node, whose collectives must outlive it. If one rank cannot have the
  // memory, no rank of the node gets it: then returns ok, leaves *made null and sets *why, which
  // must be empty before the call.
  static Status Make(NodeCollectives* node, const Options& options, TimePoint deadline,
                     std::unique_ptr<NodeBuffers>* made, std::string* why);
  ~NodeBuffers();
  NodeBuffers(const NodeBuffers&) = delete;
  NodeBuffers& operator=(const NodeBuffers&) = delete;

  // All buffers, one after another, for code that must register them.
  char* memory() const { return memory_; }
  size_t bytes() const { return options_.bytes * static_cast<size_t>(ranks()); }
  char* of(int rank) const { return memory_ + static_cast<size_t>(rank) * options_.bytes; }
  int rank() const { return node_->rank(); }
  int ranks() const { return node_->ranks(); }

  // Reduces the data at `offset` of each buffer. On return all shares are complete.
  Status Allreduce(size_t offset, const Reduction& reduction, TimePoint deadline);
  size_t ShareStart(size_t count, int rank) const { return node_->ShareStart(count, rank); }
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
