// Forwards the announcements of this rank and the ranks below it towards rank 0, combined: a name
// that all of them announce is sent once.
//
// The ranks cannot agree on a name before all have announced it, so it is held back until all ranks
// below have announced it. After `patience` it is forwarded incomplete, because the coordinator
// reports who is missing. Names that only some ranks announce (Signature::members) are forwarded at
// once; so are withdrawals, joins, leaves and wait states, after everything that was held back. A
// rank's announcements keep their order, except that different names may overtake one another.
//
// An error may answer a name before rank 0 has received this rank's announcement of it, so the rank
// may announce it again, perhaps by another number. Names that an error has answered are therefore
// forwarded at once, too, from then on.
//
// Pure logic, on the communication thread.

#ifndef TFMPI_CORE_RELAY_RELAY_H_
#define TFMPI_CORE_RELAY_RELAY_H_

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tensorflow_patches/core/agreement/message.h"
#include "tensorflow_patches/core/base/clock.h"
#include "tensorflow_patches/core/relay/rank_set.h"

namespace tfmpi {

// The same list, announced by each of these ranks.
struct Announcement {
  RankSet ranks;
  ReadyList list;
};

// The message from a rank to its parent in the tree.
std::string Encode(const std::vector<Announcement>& announcements);
// `size`: of the group. Returns false if the bytes are malformed or contain ranks outside it.
bool Decode(const std::string& bytes, int size, std::vector<Announcement>* announcements);

struct RelayOptions {
  // The name with this number; null if only some ranks announce it. Without this function nothing
  // is held back.
  std::function<const std::string*(NameId id)> name_of_all_ranks;
  Clock::duration patience = std::chrono::milliseconds(10);
};

class Relay {
 public:
  // `below`: this rank and all ranks below it, whose announcements it forwards.
  Relay(const std::vector<int>& below, RelayOptions options)
      : num_below_(static_cast<int>(below.size())), options_(std::move(options)) {}

  // An announcement of this rank, or one that a child has sent.
  void Add(Announcement announcement, TimePoint now);
  // Call it before these errors are sent to the ranks below.
  void OnErrors(const std::vector<NamedError>& errors);
  // The announcements to forward now, in order.
  std::vector<Announcement> TakeDue(TimePoint now);
  bool has_due() const { return !due_.empty(); }
  // If true, TakeDue must be called again after `patience`.
  bool holds_back() const { return kept_ != 0; }
  // Whether all of these ranks have joined.
  bool HaveJoined(const std::vector<int>& ranks) const;

 private:
  // A name or number that some ranks have announced.
  struct Name {
    RankSet passed;                   // the ranks for which it was forwarded early
    RankSet kept;                     // the ranks of `parts`
    std::vector<Announcement> parts;  // one for each different entry, such as a number of rows
  };

  void AddReady(const Announcement& announcement, TimePoint now);
  bool IsHeldBack(const ReadyList& list) const;
  void Keep(Name* name, const RankSet& ranks, ReadyList list, TimePoint now);
  template <typename Key>
  void Announce(std::map<Key, Name>* names, const Key& key, const RankSet& ranks, ReadyList list,
                TimePoint now);
  bool IsComplete(const Name& name) const;
  void Pass(Name* name);
  void PassAll();
  void Emit(Announcement announcement);

  const int num_below_;
  const RelayOptions options_;
  std::map<NameId, Name> numbered_;
  std::map<std::string, Name> named_;
  std::set<std::string> failed_;  // names that an error has answered
  int kept_ = 0;                  // names with parts
  TimePoint since_;               // when the first of them was kept
  RankSet joined_;
  RankSet quiet_;  // those that have no gradients for now (WaitState::has_no_gradients)
  std::vector<Announcement> due_;
  // For a set of ranks, the index in due_ of its last announcement, if entries may be added to it.
  std::map<std::vector<RankSet::Run>, size_t> open_;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_RELAY_RELAY_H_
