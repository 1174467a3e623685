// Heartbeats show that ranks without messages are alive, while some rank waits for the others'
// scripts to end.
//
// Before that, every wait is for a request and has a limit. At the end of its script, however, a
// rank waits as long as the others take, and a rank that computes sends nothing, just like one that
// has died. So, once a rank has joined, each rank sends its parent and its children
// (core/transport/control_links.h) an empty message every second. A rank that is silent for too
// long is assumed dead (presence.h), unless TF_MPI_STALL_TIMEOUT is 0.
//
// Communication thread.

#ifndef TFMPI_CORE_ENGINE_HEARTBEATS_H_
#define TFMPI_CORE_ENGINE_HEARTBEATS_H_

#include <algorithm>
#include <vector>

#include "tensorflow_patches/core/base/clock.h"

namespace tfmpi {

// How long the other ranks wait if the coordinator ends a stall after `limit`: twice as long, but
// at least 2 s and at most 30 s longer. So the coordinator, which knows who is missing, is first.
inline Clock::duration WithGrace(Clock::duration limit) {
  constexpr std::chrono::seconds kMin{2}, kMax{30};
  return limit + std::clamp<Clock::duration>(limit, kMin, kMax);
}

class Heartbeats {
 public:
  explicit Heartbeats(int ranks) : silences_(ranks) {}

  // Call it when the first rank has joined; later calls do nothing.
  void Begin(TimePoint now) {
    if (begun_) return;
    begun_ = true;
    sent_at_ = looked_at_ = now;
  }
  bool begun() const { return begun_; }

  // A message of `rank` has arrived.
  void OnMessage(int rank) { silences_[rank] = Clock::duration::zero(); }

  // Call it in each turn without other work, once begun. Returns whether a heartbeat is due.
  bool IsDue(TimePoint now) {
    // If this rank has not checked for a while, because it was held up or in a collective, the
    // others may not have run either.
    const Clock::duration passed = std::min<Clock::duration>(now - looked_at_, kBetween);
    looked_at_ = now;
    for (Clock::duration& silence : silences_) silence += passed;
    if (now - sent_at_ < kBetween) return false;
    sent_at_ = now;
    return true;
  }

  // How long `rank` has been silent while this rank was listening.
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
