// What the ranks that are left tell one another when others have died: how far each has come, and
// the results that some have and others have not.
//
// Communication thread; collective over the ranks that are left.

#ifndef TFMPI_CORE_RECOVERY_SURVIVORS_H_
#define TFMPI_CORE_RECOVERY_SURVIVORS_H_

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "tensorflow_patches/core/recovery/history.h"
#include "tensorflow_patches/core/transport/transport.h"

namespace tfmpi {

// Of one rank.
struct Report {
  int former_rank = 0;         // in the last group that has done anything
  uint64_t done = 0;           // units there
  uint64_t first = 0;          // History::first
  std::vector<int32_t> roots;  // former ranks that are to give it something
  std::string needs_all;
};

struct Regrouping {
  std::vector<Report> reports;  // by the new rank
  uint64_t most_done = 0;
  std::deque<Unit> missing;  // units (least_done, most_done]
  uint64_t least_done = 0;

  // In the new group, of a rank of the former one; -1: it has died.
  int NewRank(int former_rank) const;
};

// Not ok: another rank has died meanwhile, or did not answer until the deadline.
Status ExchangeReports(Transport* among, const Report& own, const History& history,
                       TimePoint deadline, Regrouping* regrouping);

}  // namespace tfmpi

#endif  // TFMPI_CORE_RECOVERY_SURVIVORS_H_
