// What this rank knows about each name: its unfinished requests here, and the numbers that rank 0
// has assigned to its signatures.
//
// Used by the communication thread. Owns its submissions. A repeated step looks a name up once and
// allocates nothing.

#ifndef TFMPI_CORE_AGREEMENT_NAME_TABLE_H_
#define TFMPI_CORE_AGREEMENT_NAME_TABLE_H_

#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

#include "tensorflow_patches/core/agreement/message.h"
#include "tensorflow_patches/core/request/queue.h"

namespace tfmpi {

class NameTable {
 public:
  struct Entry {
    std::string name;
    // Carried out one at a time, in this order; only the first is announced. Rarely more than one.
    std::vector<Submission> submissions;
    TimePoint announced;  // when the first was added to a ready list
    // One per signature that has a number, the latest first.
    std::vector<NameId> ids;
    bool outstanding = false;  // the coordinator knows the first and has not answered
    bool withdrawn = false;    // the first is to be withdrawn and has not ended
  };

  // Returns the entry of its name. Entries do not move until TakeFirst or Restart removes them.
  Entry* Add(Submission&& submission);
  // Null if the name has no pending request.
  Entry* FindPending(const std::string& name);
  // By the ticket of an unfinished request; null if there is none.
  Entry* FindPending(Ticket ticket);
  std::vector<std::string> PendingNames() const;
  bool nothing_pending() const { return pending_ == 0; }
  template <typename Body>
  void ForEachPending(const Body& body) const {
    for (const auto& [name, entry] : entries_) {
      if (!entry.submissions.empty()) body(entry);
    }
  }
  // Removes the first request. Returns the entry, or null if it now has neither a request nor a
  // number and was removed.
  Entry* TakeFirst(Entry* entry, Submission* submission);

  // For a new group: forgets all numbers and announcements. No withdrawal may be open.
  void Restart();
  // Visits the entries with pending requests in name order, which is the same on all ranks.
  template <typename Body>
  void ForEachInOrder(const Body& body) {
    for (const std::string& name : SortedNames()) {
      if (Entry* const entry = FindPending(name)) body(entry);
    }
  }

  // From now on all ranks use this number for `named`.
  void Number(NameId id, const NamedSignature& named);
  bool has(NameId id) const { return id < numbered_.size() && numbered_[id].entry != nullptr; }
  // For a number that was assigned. Valid until Restart.
  const Signature& signature(NameId id) const { return numbered_.at(id).signature; }
  // The number of `signature`, ignoring its rows, under the entry's name; kNoId if it has none.
  NameId IdOf(const Entry& entry, const Signature& signature) const;
  // Names that are pending or have a number.
  size_t size() const { return entries_.size(); }
  Entry* entry(NameId id) const { return numbered_.at(id).entry; }

 private:
  friend class Inspector;  // tests/core/simulation

  struct Numbered {
    Entry* entry = nullptr;
    Signature signature;
  };

  Entry* FindOrAdd(const std::string& name);
  std::vector<std::string> SortedNames() const;

  std::unordered_map<std::string, Entry> entries_;
  std::deque<Numbered> numbered_;  // by number
  size_t pending_ = 0;             // the number of entries with requests
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_AGREEMENT_NAME_TABLE_H_
