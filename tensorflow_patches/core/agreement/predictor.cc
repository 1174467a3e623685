#include "tensorflow_patches/core/agreement/predictor.h"

#include <algorithm>
#include <utility>

namespace tfmpi {
namespace {

const std::vector<NameId>& NoIds() {
  static const std::vector<NameId>* const empty = new std::vector<NameId>;
  return *empty;
}

}  // namespace

// A list is predictable if, apart from posts, it contains only allreduces and sparse allgathers of
// numbered names, to which all ranks contribute.
bool ResponsePredictor::IsPredictable(const ResponseList& response_list,
                                      const NameTable& table) const {
  if (!response_list.errors.empty() || !response_list.withdrawn.empty() ||
      !response_list.fatal.empty() || response_list.finished) {
    return false;
  }
  size_t items = 0, gathers = 0;
  for (const Response& response : response_list.responses) {
    if (response.contributors != ranks_) return false;
    for (const ResponseItem& item : response.items) {
      if (item.id == kNoId || item.is_new || ++items > kMaxNames) return false;
      const Signature& signature = table.signature(item.id);
      if (signature.kind == OpKind::kSparseAllgather) {
        if (++gathers > kMaxGathers) return false;
      } else if (signature.kind != OpKind::kAllreduce) {
        return false;
      }
    }
  }
  return true;
}

int ResponsePredictor::FindOrAdd(const ResponseList& response_list, const NameTable& table) {
  std::vector<NameId> names;
  for (const Response& response : response_list.responses) {
    for (const ResponseItem& item : response.items) names.push_back(item.id);
  }
  // The names determine the fusion, too (Coordinator::Plan), so they identify the list.
  for (size_t i = 0; i < known_.size(); ++i) {
    if (known_[i].names == names) return static_cast<int>(i);
  }
  if (known_.size() == kMaxKnown) {  // the script does not repeat itself
    known_.clear();
    current_ = kNone;
  }
  Known known;
  known.names = names;
  for (const NameId id : names) {
    if (table.signature(id).kind == OpKind::kSparseAllgather) known.gathers.push_back(id);
  }
  std::sort(names.begin(), names.end());
  known.sorted = std::move(names);
  known.response_list.responses = response_list.responses;
  known_.push_back(std::move(known));
  return static_cast<int>(known_.size()) - 1;
}

void ResponsePredictor::OnResponseList(const ResponseList& response_list, const NameTable& table) {
  if (!IsPredictable(response_list, table)) {
    current_ = kNone;
    return;
  }
  const int agreed = FindOrAdd(response_list, table);
  if (current_ != kNone) {
    Known& previous = known_[current_];
    previous.streak = previous.successor == agreed ? previous.streak + 1 : 1;
    previous.successor = agreed;
  }
  current_ = agreed;
}

const std::vector<NameId>& ResponsePredictor::names() const {
  return HasPrediction() ? prediction().sorted : NoIds();
}

const std::vector<NameId>& ResponsePredictor::gathers() const {
  return HasPrediction() ? prediction().gathers : NoIds();
}

void ResponsePredictor::SetRows(size_t gather, const std::function<int64_t(int rank)>& rows) {
  Known& predicted = known_[known_[current_].successor];
  for (Response& response : predicted.response_list.responses) {
    for (ResponseItem& item : response.items) {
      if (item.id != predicted.gathers[gather]) continue;
      for (int rank = 0; rank < ranks_; ++rank) item.rows[rank] = rows(rank);
    }
  }
}

bool ResponsePredictor::Fits(const ReadyList& ready_list) const {
  if (!HasPrediction() || !ready_list.requests.empty() || !ready_list.withdrawn.empty() ||
      ready_list.joined || !ready_list.leaving.empty()) {
    return false;
  }
  const Known& predicted = prediction();
  const auto count = [&predicted](const auto& items, const auto& id_of) {
    return std::count_if(items.begin(), items.end(), [&](const auto& item) {
      return std::binary_search(predicted.sorted.begin(), predicted.sorted.end(), id_of(item));
    });
  };
  // Counting is enough: no name is announced twice, and a gather is never in `ready`.
  const auto ready = count(ready_list.ready, [](NameId id) { return id; });
  const auto gathers = count(ready_list.gathers, [](const KnownGather& one) { return one.id; });
  return static_cast<size_t>(ready + gathers) == predicted.sorted.size();
}

}  // namespace tfmpi
