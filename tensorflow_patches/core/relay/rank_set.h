// A set of ranks that is cheap for consecutive ranks, such as those of a node.

#ifndef TFMPI_CORE_RELAY_RANK_SET_H_
#define TFMPI_CORE_RELAY_RANK_SET_H_

#include <algorithm>
#include <cstdint>
#include <vector>

namespace tfmpi {

class RankSet {
 public:
  struct Run {
    int32_t first;
    int32_t count;

    bool operator<(const Run& other) const {
      return first != other.first ? first < other.first : count < other.count;
    }
  };

  RankSet() = default;
  explicit RankSet(int rank) : runs_{{rank, 1}}, size_(1) {}
  // `ranks`: ascending.
  explicit RankSet(const std::vector<int>& ranks) {
    for (const int rank : ranks) Append({rank, 1});
  }

  bool empty() const { return runs_.empty(); }
  int size() const { return size_; }
  // Ascending; no run touches the next.
  const std::vector<Run>& runs() const { return runs_; }

  // The run must come after all ranks in the set.
  void Append(Run run) {
    if (!runs_.empty() && runs_.back().first + runs_.back().count == run.first) {
      runs_.back().count += run.count;
    } else {
      runs_.push_back(run);
    }
    size_ += run.count;
  }

  bool Contains(int rank) const {
    return std::any_of(runs_.begin(), runs_.end(), [rank](const Run& run) {
      return rank >= run.first && rank - run.first < run.count;
    });
  }

  bool Intersects(const RankSet& other) const {
    auto mine = runs_.begin(), theirs = other.runs_.begin();
    while (mine != runs_.end() && theirs != other.runs_.end()) {
      if (mine->first + mine->count <= theirs->first) {
        ++mine;
      } else if (theirs->first + theirs->count <= mine->first) {
        ++theirs;
      } else {
        return true;
      }
    }
    return false;
  }

  // The sets must be disjoint.
  void Add(const RankSet& other) {
    std::vector<Run> all(runs_.size() + other.runs_.size());
    std::merge(runs_.begin(), runs_.end(), other.runs_.begin(), other.runs_.end(), all.begin());
    runs_.clear();
    size_ = 0;
    for (const Run& run : all) Append(run);
  }

  void Remove(int rank) {
    RankSet left;
    for (const Run& run : runs_) {
      const bool is_in = rank >= run.first && rank - run.first < run.count;
      if (!is_in) {
        left.Append(run);
        continue;
      }
      if (rank > run.first) left.Append({run.first, rank - run.first});
      const int32_t after = run.first + run.count - rank - 1;
      if (after > 0) left.Append({rank + 1, after});
    }
    *this = left;
  }

  // All ranks, ascending.
  std::vector<int> ranks() const {
    std::vector<int> all;
    all.reserve(static_cast<size_t>(size_));
    for (const Run& run : runs_) {
      for (int i = 0; i < run.count; ++i) all.push_back(run.first + i);
    }
    return all;
  }

 private:
  std::vector<Run> runs_;
  int size_ = 0;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_RELAY_RANK_SET_H_
