// A transport that uses shared memory inside a node, on top of one that reaches all ranks.
//
// Inside a node, data and control messages pass through shared memory, and a waiting rank sleeps
// until a peer wakes it. In an allreduce between nodes of equal size, each node first reduces every
// share of the tensor; then the ranks that own the same share, one per node (a rail), reduce it
// between the nodes. Other collectives between nodes do not use shared memory.

#ifndef TFMPI_CORE_TRANSPORT_NODE_TRANSPORT_H_
#define TFMPI_CORE_TRANSPORT_NODE_TRANSPORT_H_

#include <functional>
#include <memory>
#include <vector>

#include "tensorflow_patches/core/transport/shm/node_collectives.h"
#include "tensorflow_patches/core/transport/shm/node_memory.h"
#include "tensorflow_patches/core/transport/transport.h"

namespace tfmpi {

struct NodeOptions {
  // The type in which sums with Reduction::rounds travel between nodes: float32, float16, bfloat16.
  DataType wire = DataType::kFloat32;
  Stores stores = Stores::kAuto;
  // For tests: NodeBuffers::Options::map.
  std::function<char*(size_t bytes)> map_buffers;
  // Whether a rank has died, so that operations must end. Null unless ranks continue after deaths.
  std::function<bool()> has_failed_rank;
};

// `all` reaches every rank. `rail` reaches the ranks with this local rank, one per node, in node
// order; null if there is one node, or if the nodes have different numbers of ranks: then their
// data goes through `all`. `memory` is this node's memory; `node_ranks` are the node's ranks,
// ascending. `leaders`, by rank: the first rank of its node, through which control messages pass on
// the way to rank 0 (control_links.h); empty: each rank exchanges messages with rank 0.
std::unique_ptr<Transport> MakeNodeTransport(std::unique_ptr<Transport> all,
                                             std::unique_ptr<Transport> rail,
                                             const NodeMemory& memory,
                                             const std::vector<int>& node_ranks,
                                             const std::vector<int>& leaders,
                                             const NodeOptions& options);

}  // namespace tfmpi

#endif  // TFMPI_CORE_TRANSPORT_NODE_TRANSPORT_H_
