// The path of control messages to rank 0 and back.
//
// Pure functions and plain data, any thread.

#ifndef TFMPI_CORE_TRANSPORT_CONTROL_LINKS_H_
#define TFMPI_CORE_TRANSPORT_CONTROL_LINKS_H_

#include <vector>

namespace tfmpi {

// A rank exchanges control messages with its parent and its children only.
struct ControlLinks {
  // Some ranks forward the messages of others; otherwise every rank exchanges messages with rank 0.
  // The same on all ranks.
  bool tree = false;
  int parent = 0;  // of rank 0: itself
  std::vector<int> children;
  // In a tree, for each child: the child and all ranks below it.
  std::vector<std::vector<int>> below_child;
  std::vector<int> below;      // in a tree, ascending: this rank and all ranks below it
  bool between_nodes = false;  // in a tree: the parent or a child is on another node
};

// The largest number of other leaders that are children of one leader.
inline constexpr int kControlFanOut = 8;

// Every rank exchanges messages with rank 0.
ControlLinks MakeStar(int rank, int size);
// `leaders[r]`: the first rank of rank r's node. The ranks of a node exchange messages with their
// leader; the leader does so with the leader above it and with up to `fan_out` leaders below it. A
// parent is a lower rank than its children. Returns a star if rank 0 is the parent of all others.
ControlLinks MakeTree(int rank, const std::vector<int>& leaders, int fan_out = kControlFanOut);

}  // namespace tfmpi

#endif  // TFMPI_CORE_TRANSPORT_CONTROL_LINKS_H_
