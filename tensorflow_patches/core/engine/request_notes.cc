#include "tensorflow_patches/core/engine/request_notes.h"

namespace tfmpi {

void NoteSubmitted(std::vector<Request>* requests) {
  if (Recording() == 0) return;
  const TimePoint now = Clock::now();
  for (Request& request : *requests) {
    request.submitted = now;
    if ((Recording() & kRecordEvents) == 0) continue;
    const Span span(Stage::kSubmit, request.name, Bytes(request.signature),
                    IsGradient(request.signature));
    const Parts* const parts = request.signature.parts.get();
    if (parts != nullptr) RecordParts(request.name, parts->names);
    request.submitted = Clock::now();  // recording has taken time
  }
}

void ResponseNotes::ResponseListBegins(const ResponseList& response_list) {
  stats_->ResponseList(!response_list.responses.empty());
  if (Recording() != 0) agreed_ = Clock::now();
}

Span ResponseNotes::ResponseBegins(const std::vector<FusionEntry>& entries) {
  if (Recording() == 0) return Span(Stage::kResponse);
  ++number_;
  uint64_t bytes = 0;
  size_t tensors = 0;
  for (const FusionEntry& entry : entries) {
    if (entry.request == nullptr) continue;  // this rank does not take part
    const Request& request = *entry.request;
    const uint64_t own = Bytes(request.signature);
    bytes += own;
    tensors += Tensors(request.signature);
    if ((Recording() & kRecordEvents) != 0) {
      Record(Stage::kWait, request.name, own, number_, request.submitted, agreed_);
    }
    stats_->Agreed(request, agreed_);
  }
  const OpKind kind = entries.front().signature.kind;
  stats_->OperationBegins(kind, tensors, bytes);
  return Span(Stage::kResponse, Name(kind), bytes, number_);
}

}  // namespace tfmpi
