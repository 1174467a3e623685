#include "tensorflow_patches/core/votes.h"

#include <algorithm>
#include <atomic>

namespace tfmpi {

Votes::Votes(Transport* transport, bool takes_part)
    : transport_(transport),
      takes_part_(takes_part),
      ballot_(transport->SharedWord(), transport->topology().size),
      forecast_(transport->topology().size) {}

bool Votes::Fits(const Announcement& announcement) const {
  return takes_part_ && ballot_.is_held() && forecast_.Fits(announcement);
}

// How many rows this rank has is said first: who finds all votes reads it, and has done so before
// this rank writes it again, as all take part in what is carried.
Outcome Votes::Vote(const Announcement& announcement, TimePoint now) {
  std::atomic<int64_t>* const numbers = transport_->SharedNumbers(transport_->topology().rank);
  const std::vector<NameId>& expected = forecast_.gathers();
  for (size_t i = 0; i < expected.size(); ++i) {
    for (const KnownGather& gather : announcement.gathers) {
      if (gather.id == expected[i]) numbers[i].store(gather.rows, std::memory_order_relaxed);
    }
  }
  const Outcome outcome = ballot_.Vote(position_);
  if (outcome == Outcome::kCarried) transport_->WakePeers();
  voted_ = outcome == Outcome::kOpen;
  voted_at_ = now;
  return outcome;
}

Outcome Votes::End() {
  bool disappointed = false;
  const Outcome outcome = ballot_.Reject(position_, &disappointed);
  if (disappointed) transport_->WakePeers();
  if (outcome == Outcome::kRejected) voted_ = false;
  return outcome;
}

const Verdict& Votes::Carry(Announcement* announcement) {
  const std::vector<NameId>& names = forecast_.names();
  const auto expected = [&](NameId id) {
    return std::binary_search(names.begin(), names.end(), id);
  };
  std::vector<NameId>& ready = announcement->ready;
  ready.erase(std::remove_if(ready.begin(), ready.end(), expected), ready.end());
  std::vector<KnownGather>& gathers = announcement->gathers;
  gathers.erase(std::remove_if(gathers.begin(), gathers.end(),
                               [&](const KnownGather& gather) { return expected(gather.id); }),
                gathers.end());
  for (size_t i = 0; i < forecast_.gathers().size(); ++i) {
    forecast_.SetRows(i, [&](int rank) {
      return transport_->SharedNumbers(rank)[i].load(std::memory_order_relaxed);
    });
  }
  const Verdict& verdict = forecast_.verdict();
  voted_ = false;
  ++position_;
  forecast_.CameTrue();
  return verdict;
}

void Votes::Came(const Verdict& verdict, const NameTable& table) {
  ++position_;
  forecast_.Came(verdict, table);
}

}  // namespace tfmpi
