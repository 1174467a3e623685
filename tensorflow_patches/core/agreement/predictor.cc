#include "tensorflow_patches/core/agreement/predictor.h"

#include <algorithm>
#include <utility>

namespace tfmpi {
namespace {

const std::vector<NameId>& Nothing() {
  static const std::vector<NameId>* const nothing = new std::vector<NameId>;
  return *nothing;
}

}  // namespace

// A list is predictable if all ranks take part and its names are known: at least one allreduce with
// data, which no rank can complete without the others (consensus.h), and sparse allgathers, in
// which only the number of rows may change.
bool ResponsePredictor::MayBeExpected(const ResponseList& response_list,
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
      } else if (signature.kind != OpKind::kAllreduce || NumElements(signature.shape) == 0) {
        return false;
      }
    }
  }
  return items != gathers;
}

int ResponsePredictor::Find(const ResponseList& response_list, const NameTable& table) {
  std::vector<NameId> names;
  for (const Response& response : response_list.responses) {
    for (const ResponseItem& item : response.items) names.push_back(item.id);
  }
  for (size_t i = 0; i < known_.size(); ++i) {
    if (known_[i].names == names) return static_cast<int>(i);
  }
  if (known_.size() == kMaxKnown) {  // the script does not repeat itself
    known_.clear();
    now_ = kNone;
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
  if (!MayBeExpected(response_list, table)) {
    now_ = kNone;
    return;
  }
  const int came = Find(response_list, table);
  if (now_ != kNone) {
    Known& before = known_[now_];
    before.times = before.successor == came ? before.times + 1 : 1;
    before.successor = came;
  }
  now_ = came;
}

const std::vector<NameId>& ResponsePredictor::names() const {
  return IsExpecting() ? known_[known_[now_].successor].sorted : Nothing();
}

const std::vector<NameId>& ResponsePredictor::gathers() const {
  return IsExpecting() ? known_[known_[now_].successor].gathers : Nothing();
}

void ResponsePredictor::SetRows(size_t gather, const std::function<int64_t(int rank)>& rows) {
  Known& expected = known_[known_[now_].successor];
  for (Response& response : expected.response_list.responses) {
    for (ResponseItem& item : response.items) {
      if (item.id != expected.gathers[gather]) continue;
      for (int rank = 0; rank < ranks_; ++rank) item.rows[rank] = rows(rank);
    }
  }
}

bool ResponsePredictor::Fits(const ReadyList& ready_list) const {
  if (!IsExpecting() || !ready_list.requests.empty() || !ready_list.withdrawn.empty() ||
      ready_list.joined || !ready_list.leaving.empty()) {
    return false;
  }
  const Known& expected = known_[known_[now_].successor];
  const auto count = [&expected](const auto& items, const auto& id_of) {
    return std::count_if(items.begin(), items.end(), [&](const auto& item) {
      return std::binary_search(expected.sorted.begin(), expected.sorted.end(), id_of(item));
    });
  };
  // Announced names are distinct, and each is announced under the kind it is known by.
  const auto ready = count(ready_list.ready, [](NameId id) { return id; });
  const auto gathers = count(ready_list.gathers, [](const KnownGather& one) { return one.id; });
  return static_cast<size_t>(ready + gathers) == expected.sorted.size();
}

}  // namespace tfmpi
