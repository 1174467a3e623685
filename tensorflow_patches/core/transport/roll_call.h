// Whether the ranks may run together: asked before anything that depends on how they were set up.
//
// The first messages of a group, in a form that stays what it is, so that ranks of other builds
// are named, too. Each rank tells rank 0 its settings; rank 0 compares them, and tells all what
// came of it. Collective, on the thread that creates the engine, before the engine exists.

#ifndef TFMPI_CORE_TRANSPORT_ROLL_CALL_H_
#define TFMPI_CORE_TRANSPORT_ROLL_CALL_H_

#include <functional>
#include <string>
#include <vector>

#include "tensorflow_patches/core/transport/transport.h"

namespace tfmpi {

struct RollCallOptions {
  // Lines "NAME=value", which must be the same on all ranks. The first is what build this is.
  std::string settings;
  // Rank 0 waits so long for the others, and they longer, for it knows who is missing.
  Clock::duration timeout = std::chrono::seconds(120);
  Clock::duration grace = std::chrono::seconds(30);
  // Told whom this rank waits for, whenever that changes.
  std::function<void(const std::string&)> waits;
};

// kFailedPrecondition on all ranks if their settings differ, with all values and their ranks.
Status RollCall(Transport* transport, const RollCallOptions& options);

// By rank, what was to be the same; "" if it is, else one line.
std::string Differences(const std::vector<std::string>& settings);

// "rank 1", "ranks 1, 3 and 4"; of very many the first.
std::string NameRanks(const std::vector<int>& ranks);

}  // namespace tfmpi

#endif  // TFMPI_CORE_TRANSPORT_ROLL_CALL_H_
