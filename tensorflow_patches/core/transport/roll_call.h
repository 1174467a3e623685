// Checks whether the ranks can run together, before anything that depends on their settings.
//
// The first messages of a group. Their format never changes, so that an error can name ranks that
// run another build. Each rank sends its settings to rank 0, which compares them and sends the
// result to all. Collective, on the thread that creates the engine, before the engine exists.

#ifndef TFMPI_CORE_TRANSPORT_ROLL_CALL_H_
#define TFMPI_CORE_TRANSPORT_ROLL_CALL_H_

#include <functional>
#include <string>
#include <vector>

#include "tensorflow_patches/core/transport/transport.h"

namespace tfmpi {

struct RollCallOptions {
  // Lines "NAME=value", which must be the same on all ranks. The first identifies the build.
  std::string settings;
  // Rank 0 waits this long for the others. They wait longer, by `grace`, since only rank 0 knows
  // who is missing.
  Clock::duration timeout = std::chrono::seconds(120);
  Clock::duration grace = std::chrono::seconds(30);
  // Called whenever its argument changes: which ranks this one waits for, and what they must do; ""
  // when it no longer waits. May be null.
  std::function<void(const std::string&)> report_wait;

  void ReportWait(const std::string& whom) const {
    if (report_wait) report_wait(whom);
  }
};

// If settings differ: kFailedPrecondition on all ranks, with the values and their ranks. If a rank
// does not answer: kDeadlineExceeded on the rank that waits for it; if that is rank 0, the others
// return its message as kFailedPrecondition.
Status RollCall(Transport* transport, const RollCallOptions& options);

// `settings` by rank. Returns "" if they are the same, else RollCall's error message.
std::string Differences(const std::vector<std::string>& settings);

// "rank 1", "ranks 1, 3 and 4"; of a long list only the beginning.
std::string NameRanks(const std::vector<int>& ranks);

}  // namespace tfmpi

#endif  // TFMPI_CORE_TRANSPORT_ROLL_CALL_H_
