// The ranks agree on what to record before the engine starts, and gather it after every rank has
// joined, so that one file and one table show all of them.
//
// Call StartObserving on the thread that creates the engine, before the engine exists, and Gather
// after the communication thread has ended, before Transport::Finalize. Both are collective and
// have a deadline.

#ifndef TFMPI_CORE_OBSERVABILITY_OBSERVE_H_
#define TFMPI_CORE_OBSERVABILITY_OBSERVE_H_

#include <functional>
#include <string>
#include <vector>

#include "tensorflow_patches/core/observability/stats.h"
#include "tensorflow_patches/core/transport/transport.h"

namespace tfmpi {

// All ranks use rank 0's settings: launchers do not pass the environment to all nodes.
struct Observation {
  std::string timeline;  // the file to write; empty: none
  bool stats = false;
  int64_t clock_offset = 0;  // ns this rank's clock is ahead of rank 0's; set by StartObserving
};

// Agrees on rank 0's settings, compares the clocks if there are several nodes and a timeline, and
// starts recording.
Status StartObserving(Transport* transport, Observation* observation);

// Sets *offset to the ns by which this rank's clock is ahead of rank 0's, accurate to half of the
// quickest of several round trips. `now` reads this rank's clock, in ns. Collective.
Status MeasureClockOffset(Transport* transport, const std::function<int64_t()>& now,
                          int64_t* offset);

// Rank 0 writes the timeline of all ranks and, with stats, fills `all`, by rank; elsewhere `all`
// stays empty.
Status Gather(Transport* transport, const Observation& observation, const RankStats& own,
              std::vector<RankStats>* all);

// Writes this rank's events alone, after an end with an error: "trace.json" becomes
// "trace.rank3.json". Sets *path to that name.
Status WriteOwnTimeline(const Topology& topology, const Observation& observation,
                        std::string* path);

}  // namespace tfmpi

#endif  // TFMPI_CORE_OBSERVABILITY_OBSERVE_H_
