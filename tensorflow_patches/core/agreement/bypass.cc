#include "tensorflow_patches/core/agreement/bypass.h"

#include <algorithm>
#include <atomic>

namespace tfmpi {

ResponseBypass::ResponseBypass(Transport* transport, bool takes_part)
    : transport_(transport),
      takes_part_(takes_part),
      consensus_(transport->SharedWord(), transport->topology().size),
      predictor_(transport->topology().size) {}

bool ResponseBypass::Fits(const ReadyList& ready_list) const {
  return takes_part_ && consensus_.takes_votes() && predictor_.Fits(ready_list);
}

// The numbers of rows are written before the vote, so a rank that sees all votes reads them.
Outcome ResponseBypass::Vote(const ReadyList& ready_list, TimePoint now) {
  std::atomic<int64_t>* const rows = RowsOf(transport_->topology().rank);
  const std::vector<NameId>& gathers = predictor_.gathers();
  for (size_t i = 0; i < gathers.size(); ++i) {
    for (const KnownGather& gather : ready_list.gathers) {
      if (gather.id == gathers[i]) rows[i].store(gather.rows, std::memory_order_relaxed);
    }
  }
  const Outcome outcome = consensus_.Vote(position_);
  if (outcome == Outcome::kCommitted) transport_->WakePeers();
  voted_ = outcome == Outcome::kOpen;
  voted_at_ = now;
  return outcome;
}

Outcome ResponseBypass::End() {
  bool rejected_votes = false;
  const Outcome outcome = consensus_.Reject(position_, &rejected_votes);
  if (rejected_votes) transport_->WakePeers();
  if (outcome == Outcome::kRejected) voted_ = false;
  return outcome;
}

const ResponseList& ResponseBypass::Commit(ReadyList* ready_list) {
  const std::vector<NameId>& names = predictor_.names();
  const auto is_expected = [&](NameId id) {
    return std::binary_search(names.begin(), names.end(), id);
  };
  std::vector<NameId>& ready = ready_list->ready;
  ready.erase(std::remove_if(ready.begin(), ready.end(), is_expected), ready.end());
  std::vector<KnownGather>& gathers = ready_list->gathers;
  gathers.erase(std::remove_if(gathers.begin(), gathers.end(),
                               [&](const KnownGather& gather) { return is_expected(gather.id); }),
                gathers.end());
  for (size_t i = 0; i < predictor_.gathers().size(); ++i) {
    predictor_.SetRows(i,
                       [&](int rank) { return RowsOf(rank)[i].load(std::memory_order_relaxed); });
  }
  const ResponseList& response_list = predictor_.response_list();
  voted_ = false;
  ++position_;
  ++commits_;
  predictor_.OnPredictionHit();
  return response_list;
}

void ResponseBypass::OnResponseList(const ResponseList& response_list, const NameTable& table) {
  ++position_;
  predictor_.OnResponseList(response_list, table);
}

}  // namespace tfmpi
