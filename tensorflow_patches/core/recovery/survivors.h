// The survivors' exchange after a death: how far each has come, and the results that some lack.
//
// Communication thread only; all survivors make the same calls.

#ifndef TFMPI_CORE_RECOVERY_SURVIVORS_H_
#define TFMPI_CORE_RECOVERY_SURVIVORS_H_

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "tensorflow_patches/core/recovery/history.h"
#include "tensorflow_patches/core/transport/transport.h"

namespace tfmpi {

struct Report {
  int former_rank = 0;         // in the last group that the engine ran in
  uint64_t done = 0;           // units executed there: History::done
  uint64_t first = 0;          // History::first
  std::vector<int32_t> roots;  // the roots of its pending broadcasts, as former ranks
  std::string needs_all;       // ScriptState::needs_all
};

// What all survivors know after the exchange.
struct Regrouping {
  std::vector<Report> reports;  // by new rank
  uint64_t most_done = 0;
  uint64_t least_done = 0;
  std::deque<Unit> missing;  // the units (least_done, most_done], on all ranks

  // The new rank of a former rank; -1: it has died.
  int NewRank(int former_rank) const;
};

// `among`: the transport of the survivors. Fails if another rank has died meanwhile, or has not
// answered before the deadline.
Status ExchangeReports(Transport* among, const Report& own, const History& history,
                       TimePoint deadline, Regrouping* regrouping);

}  // namespace tfmpi

#endif  // TFMPI_CORE_RECOVERY_SURVIVORS_H_
