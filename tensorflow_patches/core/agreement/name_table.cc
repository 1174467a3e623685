#include "tensorflow_patches/core/agreement/name_table.h"

#include <algorithm>
#include <utility>

namespace tfmpi {

NameTable::Entry* NameTable::FindOrAdd(const std::string& name) {
  const auto [it, is_new] = entries_.try_emplace(name);
  if (is_new) it->second.name = name;
  return &it->second;
}

NameTable::Entry* NameTable::Add(Submission&& submission) {
  Entry* const entry = FindOrAdd(submission.request.name);
  pending_ += entry->submissions.empty();
  entry->submissions.push_back(std::move(submission));
  return entry;
}

NameTable::Entry* NameTable::FindPending(const std::string& name) {
  const auto it = entries_.find(name);
  return it != entries_.end() && !it->second.submissions.empty() ? &it->second : nullptr;
}

NameTable::Entry* NameTable::FindPending(Ticket ticket) {
  const auto it = std::find_if(entries_.begin(), entries_.end(), [ticket](const auto& entry) {
    const std::vector<Submission>& submissions = entry.second.submissions;
    return std::any_of(submissions.begin(), submissions.end(),
                       [ticket](const Submission& s) { return s.ticket == ticket; });
  });
  return it != entries_.end() ? &it->second : nullptr;
}

std::vector<std::string> NameTable::PendingNames() const {
  std::vector<std::string> names;
  ForEachPending([&names](const Entry& entry) { names.push_back(entry.name); });
  return names;
}

std::vector<std::string> NameTable::SortedNames() const {
  std::vector<std::string> names = PendingNames();
  std::sort(names.begin(), names.end());
  return names;
}

void NameTable::Restart() {
  numbered_.clear();
  for (auto it = entries_.begin(); it != entries_.end();) {
    Entry& entry = it->second;
    entry.ids.clear();
    entry.outstanding = false;
    it = entry.submissions.empty() ? entries_.erase(it) : std::next(it);
  }
}

NameTable::Entry* NameTable::TakeFirst(Entry* entry, Submission* submission) {
  std::vector<Submission>& submissions = entry->submissions;
  *submission = std::move(submissions.front());
  submissions.erase(submissions.begin());
  entry->withdrawn = false;
  if (!submissions.empty()) return entry;
  --pending_;
  if (!entry->ids.empty()) return entry;
  entries_.erase(entries_.find(entry->name));
  return nullptr;
}

NameId NameTable::IdOf(const Entry& entry, const Signature& signature) const {
  for (const NameId id : entry.ids) {
    if (EqualWithoutRows(numbered_[id].signature, signature)) return id;
  }
  return kNoId;
}

void NameTable::Number(NameId id, const NamedSignature& named) {
  Entry* const entry = FindOrAdd(named.name);
  entry->ids.insert(entry->ids.begin(), id);
  if (numbered_.size() <= id) numbered_.resize(id + 1);
  numbered_[id] = {entry, named.signature};
}

}  // namespace tfmpi
