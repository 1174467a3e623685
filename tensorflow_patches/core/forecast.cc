#include "tensorflow_patches/core/forecast.h"

#include <algorithm>
#include <utility>

namespace tfmpi {

// Allreduces with data, of all ranks, under known names: nobody passes them without every rank
// (ballot.h), and nothing in them may differ from one time to the next.
bool Forecast::MayBeExpected(const Verdict& verdict, const NameTable& table) const {
  if (!verdict.errors.empty() || !verdict.withdrawn.empty() || !verdict.fatal.empty() ||
      verdict.finished) {
    return false;
  }
  size_t items = 0;
  for (const Response& response : verdict.responses) {
    if (response.contributors != ranks_) return false;
    for (const ResponseItem& item : response.items) {
      if (item.id == kNoId || item.is_new || ++items > kMostNames) return false;
      const Signature& signature = table.signature(item.id);
      if (signature.kind != OpKind::kAllreduce || NumElements(signature.shape) == 0) return false;
    }
  }
  return true;
}

int Forecast::Find(const Verdict& verdict) {
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
  const int came = Find(verdict);
  if (now_ != kNone) {
    Known& before = known_[now_];
    before.times = before.successor == came ? before.times + 1 : 1;
    before.successor = came;
  }
  now_ = came;
}

const std::vector<NameId>& Forecast::names() const {
  static const std::vector<NameId>* const kNothing = new std::vector<NameId>;
  if (now_ == kNone || known_[now_].times < kTimes) return *kNothing;
  return known_[known_[now_].successor].sorted;
}

bool Forecast::Fits(const Announcement& announcement) const {
  const std::vector<NameId>& expected = names();
  return !expected.empty() && announcement.ready.size() == expected.size() &&
         announcement.gathers.empty() && announcement.requests.empty() &&
         announcement.withdrawn.empty() && !announcement.joined && announcement.leaving.empty() &&
         std::is_permutation(expected.begin(), expected.end(), announcement.ready.begin());
}

}  // namespace tfmpi
