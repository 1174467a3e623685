#include "tensorflow_patches/core/forecast.h"

#include <algorithm>
#include <utility>

namespace tfmpi {
namespace {

const std::vector<NameId>& Nothing() {
  static const std::vector<NameId>* const nothing = new std::vector<NameId>;
  return *nothing;
}

}  // namespace

// Of all ranks, under known names: allreduces with data, at least one, which nobody
// passes without every rank (ballot.h), and exchanges of rows, in which only the rows may differ
// from one time to the next.
bool Forecast::MayBeExpected(const Verdict& verdict, const NameTable& table) const {
  if (!verdict.errors.empty() || !verdict.withdrawn.empty() || !verdict.fatal.empty() ||
      verdict.finished) {
    return false;
  }
  size_t items = 0, gathers = 0;
  for (const Response& response : verdict.responses) {
    if (response.contributors != ranks_) return false;
    for (const ResponseItem& item : response.items) {
      if (item.id == kNoId || item.is_new || ++items > kMostNames) return false;
      const Signature& signature = table.signature(item.id);
      if (signature.kind == OpKind::kExchange) {
        if (++gathers > kMostGathers) return false;
      } else if (signature.kind != OpKind::kAllreduce || NumElements(signature.shape) == 0) {
        return false;
      }
    }
  }
  return items != gathers;
}

int Forecast::Find(const Verdict& verdict, const NameTable& table) {
  std::vector<NameId> names;
  for (const Response& response : verdict.responses) {
    for (const ResponseItem& item : response.items) names.push_back(item.id);
  }
  for (size_t i = 0; i < known_.size(); ++i) {
    if (known_[i].names == names) return static_cast<int>(i);
  }
  if (known_.size() == kMostKnown) {  // of a script that does not repeat itself
    known_.clear();
    now_ = kNone;
  }
  Known known;
  known.names = names;
  for (const NameId id : names) {
    if (table.signature(id).kind == OpKind::kExchange) known.gathers.push_back(id);
  }
  std::sort(names.begin(), names.end());
  known.sorted = std::move(names);
  known.verdict.responses = verdict.responses;
  known_.push_back(std::move(known));
  return static_cast<int>(known_.size()) - 1;
}

void Forecast::Came(const Verdict& verdict, const NameTable& table) {
  if (!MayBeExpected(verdict, table)) {
    now_ = kNone;
    return;
  }
  const int came = Find(verdict, table);
  if (now_ != kNone) {
    Known& before = known_[now_];
    before.times = before.successor == came ? before.times + 1 : 1;
    before.successor = came;
  }
  now_ = came;
}

const std::vector<NameId>& Forecast::names() const {
  return IsExpecting() ? known_[known_[now_].successor].sorted : Nothing();
}

const std::vector<NameId>& Forecast::gathers() const {
  return IsExpecting() ? known_[known_[now_].successor].gathers : Nothing();
}

void Forecast::SetRows(size_t gather, const std::function<int64_t(int rank)>& rows) {
  Known& expected = known_[known_[now_].successor];
  for (Response& response : expected.verdict.responses) {
    for (ResponseItem& item : response.items) {
      if (item.id != expected.gathers[gather]) continue;
      for (int rank = 0; rank < ranks_; ++rank) item.rows[rank] = rows(rank);
    }
  }
}

bool Forecast::Fits(const Announcement& announcement) const {
  if (!IsExpecting() || !announcement.requests.empty() || !announcement.withdrawn.empty() ||
      announcement.joined || !announcement.leaving.empty()) {
    return false;
  }
  const Known& expected = known_[known_[now_].successor];
  const auto count = [&expected](const auto& items, const auto& id_of) {
    return std::count_if(items.begin(), items.end(), [&](const auto& item) {
      return std::binary_search(expected.sorted.begin(), expected.sorted.end(), id_of(item));
    });
  };
  // Announced names are distinct, and a name is ready as what it is known for.
  const auto ready = count(announcement.ready, [](NameId id) { return id; });
  const auto gathers = count(announcement.gathers, [](const KnownGather& one) { return one.id; });
  return static_cast<size_t>(ready + gathers) == expected.sorted.size();
}

}  // namespace tfmpi
