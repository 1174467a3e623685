// By way of which ranks control messages go to rank 0 and come back.
//
// Pure functions and plain data, any thread.

#ifndef TFMPI_CORE_TRANSPORT_CONTROL_LINKS_H_
#define TFMPI_CORE_TRANSPORT_CONTROL_LINKS_H_

#include <vector>

namespace tfmpi {

// A rank sends control messages to its parent and its children, and to nobody else.
struct ControlLinks {
  // Some ranks pass on what others say; else every rank speaks with rank 0. Alike on all ranks.
  bool tree = false;
  int parent = 0;  // of rank 0: itself
  std::vector<int> children;
  // In a tree, of each child: it, and all that it passes on for.
  std::vector<std::vector<int>> below_child;
  std::vector<int> below;      // in a tree, ascending: this rank, and all that it passes on for
  bool between_nodes = false;  // its parent or a child is on another node
};

// Leaders of nodes beside each other in the tree have one parent.
inline constexpr int kControlFanOut = 8;

// Every rank speaks with rank 0.
ControlLinks MakeStar(int rank, int size);
// `leaders[r]`: the first rank of rank r's node. The ranks of a node speak with it; it speaks with
// the leader above it, and with up to `fan_out` leaders below it. A parent is a lower rank than its
// children. A star where that is one.
ControlLinks MakeTree(int rank, const std::vector<int>& leaders, int fan_out = kControlFanOut);

}  // namespace tfmpi

#endif  // TFMPI_CORE_TRANSPORT_CONTROL_LINKS_H_
