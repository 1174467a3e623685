// A transport that keeps inside a node what need not leave it, over one that reaches all ranks.
//
// Inside a node data and control messages travel through shared memory, and a rank that waits
// sleeps until a peer wakes it. Between nodes each share of a tensor, already reduced inside the
// node, travels between the ranks that own it (a rail).

#ifndef TFMPI_CORE_TRANSPORT_NODE_TRANSPORT_H_
#define TFMPI_CORE_TRANSPORT_NODE_TRANSPORT_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tensorflow_patches/core/transport/shm/node_collectives.h"
#include "tensorflow_patches/core/transport/shm/node_memory.h"
#include "tensorflow_patches/core/transport/transport.h"

namespace tfmpi {

struct NodeOptions {
  // The type in which a float32 sum travels between nodes: kFloat32, or rounded to kFloat16 or
  // kBfloat16.
  DataType wire = DataType::kFloat32;
  Stores stores = Stores::kAuto;
  // For tests: NodeBuffers::Options::map.
  std::function<char*(size_t bytes)> map_buffers;
  // Where ranks go on without those that die: whether to leave an operation, as one has.
  std::function<bool()> has_failed_rank;
};

// `all` reaches every rank. `rail` reaches the ranks with this local rank, one per node, in the
// order of the nodes; null if there is one node, or if the nodes have different numbers of ranks:
// then data travels through `all`. `memory` is that of this node, whose ranks are `node_ranks`,
// ascending. `leaders`, by rank: the first rank of its node, by way of which control messages go to
// rank 0 (control_links.h); empty: each rank speaks with rank 0.
std::unique_ptr<Transport> MakeNodeTransport(std::unique_ptr<Transport> all,
                                             std::unique_ptr<Transport> rail,
                                             const NodeMemory& memory,
                                             const std::vector<int>& node_ranks,
                                             const std::vector<int>& leaders,
                                             const NodeOptions& options);

}  // namespace tfmpi

#endif  // TFMPI_CORE_TRANSPORT_NODE_TRANSPORT_H_
