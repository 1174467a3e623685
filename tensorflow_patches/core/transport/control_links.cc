#include "tensorflow_patches/core/transport/control_links.h"

#include <algorithm>

namespace tfmpi {

ControlLinks MakeStar(int rank, int size) {
  ControlLinks links;
  for (int other = 1; rank == 0 && other < size; ++other) links.children.push_back(other);
  return links;
}

ControlLinks MakeTree(int rank, const std::vector<int>& leaders, int fan_out) {
  const int size = static_cast<int>(leaders.size());
  std::vector<int> by_node;  // each node's leader, ascending
  for (int r = 0; r < size; ++r) {
    if (leaders[r] == r) by_node.push_back(r);
  }
  const auto parent_of = [&](int r) {
    if (leaders[r] != r) return leaders[r];
    const auto node = std::lower_bound(by_node.begin(), by_node.end(), r) - by_node.begin();
    return node == 0 ? 0 : by_node[static_cast<size_t>((node - 1) / fan_out)];
  };
  ControlLinks links;
  links.parent = parent_of(rank);
  links.between_nodes = leaders[links.parent] != leaders[rank];
  // Parents are lower ranks than their children, so one pass finds all ranks below.
  std::vector<bool> below(leaders.size());
  std::vector<int> child_of(leaders.size());  // the index of the child that leads to a rank below
  for (int r = 0; r < size; ++r) {
    const int parent = parent_of(r);
    links.tree |= parent != 0;
    if (r != rank && r != 0 && parent == rank) {
      links.children.push_back(r);
      links.below_child.emplace_back();
      links.between_nodes |= leaders[r] != leaders[rank];
    }
    below[r] = r == rank || (r != 0 && below[parent]);
    if (below[r]) links.below.push_back(r);
    if (!below[r] || r == rank) continue;
    child_of[r] = parent == rank ? static_cast<int>(links.children.size()) - 1 : child_of[parent];
    links.below_child[child_of[r]].push_back(r);
  }
  if (!links.tree) {
    links.below.clear();
    links.below_child.clear();
  }
  return links;
}

}  // namespace tfmpi
