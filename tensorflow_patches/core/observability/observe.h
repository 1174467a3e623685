// What the ranks do together so that one file and one table show all of them: before the engine
// starts, and when every rank has joined.
//
// Start on the thread that creates the engine, before it exists; Gather after its communication
// thread has ended, before Transport::Finalize. Both are collective and end at a deadline.

#ifndef TFMPI_CORE_OBSERVABILITY_OBSERVE_H_
#define TFMPI_CORE_OBSERVABILITY_OBSERVE_H_

#include <functional>
#include <string>
#include <vector>

#include "tensorflow_patches/core/observability/stats.h"
#include "tensorflow_patches/core/transport/transport.h"

namespace tfmpi {

// Rank 0's wishes are every rank's: launchers do not carry the environment to all nodes alike.
struct Observation {
  std::string timeline;  // the file to write; empty: none
  bool stats = false;
  int64_t clock_offset = 0;  // ns that this rank's clock is ahead of rank 0's; a result
};

// Agrees on rank 0's wishes, compares clocks if they are not of one machine, starts to record.
Status StartObserving(Transport* transport, Observation* observation);

// ns that this rank's clock is ahead of rank 0's, to half a round trip of the quickest of several
// messages. `now` is that clock, ns. Collective.
Status MeasureClockOffset(Transport* transport, const std::function<int64_t()>& now,
                          int64_t* offset);

// Rank 0 writes the timeline of all ranks and fills in `all`, by rank; elsewhere it stays empty.
Status Gather(Transport* transport, const Observation& observation, const RankStats& own,
              std::vector<RankStats>* all);

// This rank's events alone, when the ranks did not end together: "trace.json" becomes
// "trace.rank3.json". Returns the name.
Status WriteOwnTimeline(const Topology& topology, const Observation& observation,
                        std::string* path);

}  // namespace tfmpi

#endif  // TFMPI_CORE_OBSERVABILITY_OBSERVE_H_
