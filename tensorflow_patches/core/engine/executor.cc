#include "tensorflow_patches/core/engine/executor.h"

namespace tfmpi {
namespace {

// All ranks choose the same way to reduce on GPUs, so only rank 0 reports it.
GpuOptions GpuOptionsFor(const EngineState& state) {
  GpuOptions gpus = state.options.gpus;
  if (state.rank() == 0) gpus.log = state.options.log;
  gpus.chosen = [published = state.published](bool staged) { published->SetGpusStaged(staged); };
  return gpus;
}

// Whether the transport has failed, rather than just the request.
bool IsFatal(const Status& status) {
  return status.code() == Code::kDeadlineExceeded || status.code() == Code::kUnavailable;
}

}  // namespace

Executor::Executor(EngineState* state, PendingRequests* pending, RecoverableReduction* recoverable)
    : state_(state),
      pending_(pending),
      recoverable_(recoverable),
      fusion_(state->transport, state->options.coordinator.fusion_threshold, GpuOptionsFor(*state)),
      response_notes_(&state->stats) {}

void Executor::Execute(const ResponseList& response_list) {
  response_notes_.ResponseListBegins(response_list);
  for (const Response& response : response_list.responses) {
    if (state_->ok()) Execute(response);
  }
}

void Executor::Execute(const Response& response) {
  const Status resolved = ResolveAll(response);
  if (!resolved.ok()) return state_->Fail(resolved);
  const Span span = response_notes_.ResponseBegins(fusion_entries_);
  const Status status = Transfer(response);
  // The survivors repeat or finish it, so its requests stay pending.
  if (IsFatal(status) && state_->CausedByDeath()) return state_->Fail(status);
  uint64_t tensors = 0, bytes = 0;
  for (const FusionEntry& fusion_entry : fusion_entries_) {
    if (fusion_entry.request == nullptr) continue;
    const Signature& own = fusion_entry.request->signature;  // with this rank's number of rows
    tensors += Tensors(own);
    bytes += static_cast<uint64_t>(NumElements(own.shape)) * SizeOf(own.dtype);
  }
  state_->published->collectives.Add(1);
  if (status.ok()) {
    state_->published->completed.Add(tensors);
    state_->published->bytes.Add(bytes);
  }
  if (bytes >= kAloneBytes) state_->now = Clock::now();  // such a transfer takes long
  CompleteEntries(status);
  if (IsFatal(status)) state_->Fail(status);
  if (recoverable_ != nullptr && state_->ok()) {
    state_->Fail(recoverable_->TrimHistory(state_->Deadline()));
  }
}

Status Executor::Deliver(const Response& response, const Result& result) {
  TFMPI_RETURN_IF_NOT_OK(ResolveAll(response));
  CompleteEntries(RecoverableReduction::Deliver(response, fusion_entries_, state_->rank(), result,
                                                /*collected_here=*/false));
  return Status();
}

Status Executor::ResolveAll(const Response& response) {
  fusion_entries_.clear();
  entries_.clear();
  for (const ResponseItem& item : response.items) {
    TFMPI_RETURN_IF_NOT_OK(Resolve(item, response.contributors));
  }
  return Status();
}

// Appends the item to fusion_entries_ and entries_, if it matches what this rank has announced.
Status Executor::Resolve(const ResponseItem& item, int contributors) {
  NameTable& names = pending_->names();
  if (item.is_new && item.id != kNoId) names.Number(item.id, item.named);
  if (item.id != kNoId && !names.has(item.id)) {
    return Refusal("number " + std::to_string(item.id), "which rank 0 has never assigned");
  }
  NameTable::Entry* const entry =
      item.id != kNoId ? names.entry(item.id) : names.FindPending(item.named.name);
  const Signature& signature = item.id != kNoId ? names.signature(item.id) : item.named.signature;
  const bool takes_part = entry != nullptr && !entry->submissions.empty();
  Request* const own = takes_part ? &entry->submissions.front().request : nullptr;
  const auto refuse = [&](const std::string& why) {
    return Refusal("'" + (entry != nullptr ? entry->name : item.named.name) + "'", why);
  };
  const int size = state_->size(), rank = state_->rank();
  // Only a rank that has joined, or has reported that it has no gradients, may be left out.
  const bool missing = own == nullptr && IsMember(signature, rank);
  if (missing && ((!state_->joined && !state_->reported_no_gradients) || contributors == size)) {
    return refuse("which this rank has not announced");
  }
  if (missing && IsGradient(signature)) state_->script_state->CountMissedGradient();
  if (takes_part && !EqualWithoutRows(own->signature, signature)) {
    return refuse("as " + Describe(signature) + ", but has announced " + Describe(own->signature));
  }
  const bool gathers = GathersRows(signature.kind);
  if (item.rows.size() != static_cast<size_t>(gathers ? size : 0)) {
    return refuse("with row counts of " + std::to_string(item.rows.size()) + " ranks");
  }
  if (gathers && item.rows[rank] != (takes_part ? own->signature.shape[0] : 0)) {
    return refuse("with a row count for this rank that differs from its own");
  }
  fusion_entries_.push_back({signature, own});
  entries_.push_back(entry);
  return Status();
}

Status Executor::Refusal(const std::string& what, const std::string& why) const {
  return Status(Code::kInternal, state_->Me() + " has received an order from rank 0 for " + what +
                                     ", " + why +
                                     ". Either another process sends messages as rank 0, or this "
                                     "is a bug in tensorflow.mpi; please report it");
}

Status Executor::Transfer(const Response& response) {
  const FusionEntry& first = fusion_entries_.front();
  const TimePoint deadline = state_->Deadline();
  if (recoverable_ != nullptr) return recoverable_->Execute(response, fusion_entries_, deadline);
  switch (first.signature.kind) {
    case OpKind::kAllreduce:
      return fusion_.Allreduce(fusion_entries_, response.contributors, deadline);
    case OpKind::kAllgather:
      return fusion_.Allgather(first, response.items.front().rows, deadline);
    case OpKind::kSparseAllgather:
      return fusion_.SparseAllgather(first, response.items.front().rows, response.contributors,
                                     deadline);
    case OpKind::kBroadcast:
      return fusion_.Broadcast(first, deadline);
    case OpKind::kBarrier:
      return Status();
  }
  return Status(Code::kInternal, "unknown operation");
}

void Executor::CompleteEntries(const Status& status) {
  for (size_t i = 0; i < fusion_entries_.size(); ++i) {
    const FusionEntry& fusion_entry = fusion_entries_[i];
    if (fusion_entry.request == nullptr) continue;
    if (!IsFatal(status)) {
      pending_->Complete(entries_[i], status);
      continue;
    }
    const std::string what = Name(fusion_entry.signature.kind) + std::string(" '") +
                             fusion_entry.request->name + "': " + status.message();
    pending_->Complete(entries_[i], Status(status.code(), state_->Me() + ": " + what));
  }
}

}  // namespace tfmpi
