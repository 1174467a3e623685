// Whether ranks that have nothing to say are still there, while some rank waits for the others'
// ends.
//
// Before that every wait is for a request, and has an end of its own. At the end of its script a
// rank waits for as long as the others take, and a rank that computes says nothing, as one does
// that has died. So, once a rank has joined, those between which messages travel
// (core/transport/control_links.h) give each other a sign of life now and then: an empty message.
// Who is silent for too long is taken for dead.
//
// Communication thread.

#ifndef TFMPI_CORE_ENGINE_HEARTBEATS_H_
#define TFMPI_CORE_ENGINE_HEARTBEATS_H_

#include <algorithm>
#include <vector>

#include "tensorflow_patches/core/base/clock.h"

namespace tfmpi {

// What a peer allows rank 0, or another, beyond a limit that rank 0 itself keeps: a stall is the
// coordinator's to report and to end, which knows who is missing. Its peers give it as long again,
// within bounds.
inline Clock::duration WithGrace(Clock::duration limit) {
  constexpr std::chrono::seconds kMin{2}, kMax{30};
  return limit + std::clamp<Clock::duration>(limit, kMin, kMax);
}

class Heartbeats {
 public:
  explicit Heartbeats(int ranks) : silences_(ranks) {}

  // Some rank has joined: signs are given from now on.
  void Begin(TimePoint now) {
    if (begun_) return;
    begun_ = true;
    sent_at_ = looked_at_ = now;
  }
  bool begun() const { return begun_; }

  // A message of `rank` has come.
  void OnMessage(int rank) { silences_[rank] = Clock::duration::zero(); }

  // To be called in each turn, once begun. Whether a sign is due.
  bool IsDue(TimePoint now) {
    // Where this rank has looked at nothing for a while, being held up or in a collective, nor may
    // the others have had their turn.
    const Clock::duration passed = std::min<Clock::duration>(now - looked_at_, kBetween);
    looked_at_ = now;
    for (Clock::duration& silence : silences_) silence += passed;
    if (now - sent_at_ < kBetween) return false;
    sent_at_ = now;
    return true;
  }

  // For how long nothing has been heard of `rank`, as far as this rank could hear.
  Clock::duration SilenceOf(int rank) const { return silences_[rank]; }

 private:
  friend class Inspector;  // tests/core/simulation

  static constexpr std::chrono::seconds kBetween{1};

  bool begun_ = false;
  TimePoint sent_at_;
  TimePoint looked_at_;
  std::vector<Clock::duration> silences_;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_ENGINE_HEARTBEATS_H_
