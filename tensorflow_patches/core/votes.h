// This rank's votes: how it agrees with the others on a step that repeats, without a message.
//
// Position after position, the ranks of a node either carry what all of them expect (forecast.h) by
// voting for it (ballot.h), or do what a verdict of the coordinator says. A rank votes, or tells
// the coordinator; what it has told it must not vote for.
//
// Used by whoever has the engine's turn.

#ifndef TFMPI_CORE_VOTES_H_
#define TFMPI_CORE_VOTES_H_

#include <cstdint>
#include <vector>

#include "tensorflow_patches/core/ballot.h"
#include "tensorflow_patches/core/forecast.h"
#include "tensorflow_patches/core/message.h"
#include "tensorflow_patches/core/name_table.h"
#include "tensorflow_patches/core/transport/transport.h"

namespace tfmpi {

class Votes {
 public:
  // The transport outlives it. `takes_part`: a rank that does not still rejects, for the others'
  // sake.
  Votes(Transport* transport, bool takes_part);

  // Agreements that had responses, so far: the same on all ranks at the same one.
  uint64_t position() const { return position_; }
  // For what is expected at position(); it has not been seen to be decided.
  bool voted() const { return voted_; }
  TimePoint voted_at() const { return voted_at_; }
  // The names that are expected, ascending; empty if nothing is.
  const std::vector<NameId>& expected() const { return forecast_.names(); }

  Outcome Look() const { return ballot_.Look(position_); }
  Outcome Watch() const { return ballot_.Watch(position_); }

  // Whether a rank that has this to announce may vote: all that is expected is in it.
  bool Fits(const Announcement& announcement) const;
  // With what fits. Carried: by this vote, the last; its peers have been woken.
  Outcome Vote(const Announcement& announcement, TimePoint now);
  // Rejects what is open; its voters have been woken. Carried: it was, before.
  Outcome End();

  // All have voted. Passes the position; what was expected there is struck from the announcement,
  // in which there may be more. What is to be done, until Came is called.
  const Verdict& Carry(Announcement* announcement);
  // Passes the position by a verdict of the coordinator, which has responses.
  void Came(const Verdict& verdict, const NameTable& table);

 private:
  Transport* const transport_;
  const bool takes_part_;
  uint64_t position_ = 0;
  Ballot ballot_;
  Forecast forecast_;
  bool voted_ = false;
  TimePoint voted_at_;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_VOTES_H_
