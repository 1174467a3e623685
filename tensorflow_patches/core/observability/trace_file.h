// A trace of all ranks in one file, in the Trace Event Format, which Perfetto and chrome://tracing
// open.
//
// Each rank is a process in it. Its tracks: steps; the communication thread; waits for input; each
// other thread. Waits for peers overlap, so they are asynchronous events. Encode and Decode are for
// sending a rank's events to rank 0. All functions except WriteTrace are pure. Any thread.

#ifndef TFMPI_CORE_OBSERVABILITY_TRACE_FILE_H_
#define TFMPI_CORE_OBSERVABILITY_TRACE_FILE_H_

#include <string>
#include <vector>

#include "tensorflow_patches/core/base/status.h"
#include "tensorflow_patches/core/observability/timeline.h"

namespace tfmpi {

struct RankEvents {
  int rank = 0;
  std::string host;
  int64_t clock_offset = 0;  // ns by which this rank's clock is ahead of rank 0's
  Events events;
};

// Returns at most about `most_bytes`: the earliest events are left out, and counted as dropped.
std::string Encode(RankEvents events, size_t most_bytes);
bool Decode(const std::string& bytes, RankEvents* events);

// The JSON text. Times are microseconds since the first event, on rank 0's clock.
std::string FormatTrace(const std::vector<RankEvents>& ranks);
Status WriteTrace(const std::string& path, const std::vector<RankEvents>& ranks);

}  // namespace tfmpi

#endif  // TFMPI_CORE_OBSERVABILITY_TRACE_FILE_H_
