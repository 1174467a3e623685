// What a rank passes on to rank 0 for the ranks below it: gathered, so that what all of them
// announce goes on as one.
//
// Nothing can be agreed on before all ranks have announced it. So a name that not all below have
// announced is kept back, and the coordinator misses nothing; after a while it goes on as it is,
// since the coordinator tells who is missing. All else goes on at once, after what was kept. What
// one rank says keeps its order, but for names that become ready in one.
//
// Pure logic; the communication thread. Keeping back is all that it can do wrong in: it invents
// nothing and drops nothing.

#ifndef TFMPI_CORE_RELAY_RELAY_H_
#define TFMPI_CORE_RELAY_RELAY_H_

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tensorflow_patches/core/agreement/message.h"
#include "tensorflow_patches/core/base/clock.h"
#include "tensorflow_patches/core/relay/rank_set.h"

namespace tfmpi {

// What each of these ranks says.
struct Announcement {
  RankSet ranks;
  ReadyList list;
};

// From a rank to the one above it in a tree.
std::string Encode(const std::vector<Announcement>& announcements);
// `size`: of the group. False if it is not what Encode made in such a group.
bool Decode(const std::string& bytes, int size, std::vector<Announcement>* announcements);

struct RelayOptions {
  // Null: nothing is kept back. Else whether every rank announces what this number stands for.
  std::function<bool(NameId id)> of_all_ranks;
  Clock::duration patience = std::chrono::milliseconds(10);
};

class Relay {
 public:
  // `below`: for which ranks it speaks.
  Relay(const std::vector<int>& below, RelayOptions options)
      : below_(static_cast<int>(below.size())), options_(std::move(options)) {}

  void Take(Announcement said, TimePoint now);
  // An error has answered some name on all ranks: what was passed on of it is no part of the next.
  void ForgetPassed();
  // What goes on now, in its order.
  std::vector<Announcement> TakeDue(TimePoint now);
  bool has_due() const { return !due_.empty(); }
  // Something is kept back: to be asked again within the patience.
  bool keeps() const { return kept_ != 0; }
  // All of these have said so.
  bool HaveJoined(const std::vector<int>& ranks) const;

 private:
  // One name, or number, that some ranks have announced.
  struct Name {
    RankSet passed;                   // on, of ranks that were not all
    RankSet kept;                     // those of `parts`
    std::vector<Announcement> parts;  // by what differs among the ranks, as rows
  };

  void TakePlain(const Announcement& said, TimePoint now);
  void Keep(Name* name, const RankSet& ranks, ReadyList list, TimePoint now);
  template <typename Key>
  void Announce(std::map<Key, Name>* names, const Key& key, const RankSet& ranks, ReadyList list,
                TimePoint now);
  bool IsComplete(const Name& name) const;
  void Pass(Name* name);
  void PassAll();
  void Emit(Announcement announcement);

  const int below_;
  const RelayOptions options_;
  std::map<NameId, Name> numbered_;
  std::map<std::string, Name> named_;
  int kept_ = 0;  // names with parts
  TimePoint since_;
  RankSet joined_;
  RankSet quiet_;  // the others average gradients without them (WaitState::has_no_gradients)
  std::vector<Announcement> due_;
  // Of the last ones in due_, by ranks: what may be added to them.
  std::map<std::vector<RankSet::Run>, size_t> open_;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_RELAY_RELAY_H_
