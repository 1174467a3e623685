// Records requests in traces (timeline.h) and counters (stats.h) as they pass through the engine.
// Costs next to nothing unless one of the two is enabled.

#ifndef TFMPI_CORE_ENGINE_REQUEST_NOTES_H_
#define TFMPI_CORE_ENGINE_REQUEST_NOTES_H_

#include <vector>

#include "tensorflow_patches/core/agreement/message.h"
#include "tensorflow_patches/core/observability/stats.h"
#include "tensorflow_patches/core/observability/timeline.h"
#include "tensorflow_patches/core/reduction/fusion.h"

namespace tfmpi {

// Any thread. Call it before the requests enter the queue.
void NoteSubmitted(std::vector<Request>* requests);

// Owned by the engine, used on the communication thread.
class ResponseNotes {
 public:
  // `stats` outlives it.
  explicit ResponseNotes(CommunicationStats* stats) : stats_(stats) {}

  void ResponseListBegins(const ResponseList& response_list);
  // Keep the span until the response has ended.
  Span ResponseBegins(const std::vector<FusionEntry>& entries);

 private:
  CommunicationStats* const stats_;
  TimePoint agreed_;     // of the current response list
  uint32_t number_ = 0;  // of the current response, counted while something is recorded
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_ENGINE_REQUEST_NOTES_H_
