// What traces (timeline.h) and counters (stats.h) are told of requests on their way through the
// engine. Nothing is recorded, and little is done, unless someone asked for either.

#ifndef TFMPI_CORE_ENGINE_REQUEST_NOTES_H_
#define TFMPI_CORE_ENGINE_REQUEST_NOTES_H_

#include <vector>

#include "tensorflow_patches/core/agreement/message.h"
#include "tensorflow_patches/core/observability/stats.h"
#include "tensorflow_patches/core/observability/timeline.h"
#include "tensorflow_patches/core/reduction/fusion.h"

namespace tfmpi {

// Any thread: they are about to enter the queue.
void NoteSubmitted(std::vector<Request>* requests);

// The communication thread's; the engine owns it.
class ResponseNotes {
 public:
  // `stats` outlives it.
  explicit ResponseNotes(CommunicationStats* stats) : stats_(stats) {}

  void ResponseListBegins(const ResponseList& response_list);
  // To be kept until the response has ended.
  Span ResponseBegins(const std::vector<FusionEntry>& entries);

 private:
  CommunicationStats* const stats_;
  TimePoint agreed_;     // of the response list under way
  uint32_t number_ = 0;  // of the response under way
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_ENGINE_REQUEST_NOTES_H_
