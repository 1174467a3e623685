// What this rank knows of each name: its requests that have not ended, and the number that the
// ranks have given it.
//
// Used by the communication thread. Owns the submissions in it. A step that repeats itself
// looks a name up once and allocates nothing.

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
    // They run one after the other; the first is the one announced. Seldom more than one.
    std::vector<Submission> submissions;
    TimePoint announced;
    // One of each signature that has a number, the last that was given first.
    std::vector<NameId> ids;
    bool outstanding = false;  // the coordinator knows of the first, and has not answered
    bool withdrawn = false;    // the first is to be withdrawn, and has not ended
  };

  // Of its name. Entries stay where they are until TakeFirst forgets them.
  Entry* Add(Submission&& submission);
  // Null if nothing is pending under it.
  Entry* FindPending(const std::string& name);
  // Of a request that has not ended; null if there is none.
  Entry* FindPending(Ticket ticket);
  std::vector<std::string> PendingNames() const;
  bool nothing_pending() const { return pending_ == 0; }
  template <typename Body>
  void ForEachPending(const Body& body) const {
    for (const auto& [name, entry] : entries_) {
      if (!entry.submissions.empty()) body(entry);
    }
  }
  // The first request leaves the table. Returns the entry, or null: with neither a request nor a
  // number it is forgotten.
  Entry* TakeFirst(Entry* entry, Submission* submission);

  // A group of other ranks begins: no name has a number, and nobody knows of what is pending.
  void Restart();
  // Of every entry, by name, so that ranks go through them alike.
  template <typename Body>
  void ForEachInOrder(const Body& body) {
    for (const std::string& name : SortedNames()) {
      if (Entry* const entry = FindPending(name)) body(entry);
    }
  }

  // All ranks know `named` by this number from now on.
  void Number(NameId id, const NamedSignature& named);
  bool has(NameId id) const { return id < numbered_.size() && numbered_[id].entry != nullptr; }
  // Of a number that was given; lives as long as the table.
  const Signature& signature(NameId id) const { return numbered_.at(id).signature; }
  // The number of `signature`, less its rows, under the entry's name; kNoId if it has none.
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

  Entry* Find(const std::string& name);
  std::vector<std::string> SortedNames() const;

  std::unordered_map<std::string, Entry> entries_;
  std::deque<Numbered> numbered_;  // by number
  size_t pending_ = 0;             // entries with requests
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_AGREEMENT_NAME_TABLE_H_
