// What the ranks have agreed on is done, and requests end.

#include <algorithm>
#include <string>
#include <utility>

#include "tensorflow_patches/core/engine/engine.h"

namespace tfmpi {

void Engine::Execute(const ResponseList& response_list) {
  response_notes_.ResponseListBegins(response_list);
  for (const Response& response : response_list.responses) {
    if (failure_.ok()) Execute(response);
  }
  if (options_.go_on) {
    if (!failure_.ok()) return;
    ResponseList rest = response_list;
    rest.responses.clear();
    if (!rest.empty()) history_.Add({std::move(rest), Result()}, /*meets_all=*/false);
  }
  ExecuteRest(response_list);
}

// What stands beside the responses.
void Engine::ExecuteRest(const ResponseList& response_list) {
  // Before the errors: one that the other ranks ran into after this rank had withdrawn answers its
  // next request of that name.
  for (const Withdrawal& withdrawal : response_list.withdrawn) {
    NameTable::Entry* const entry = names_.FindPending(withdrawal.name);
    if (withdrawal.rank != topology().rank || entry == nullptr) continue;
    Complete(entry, Status(Code::kCancelled, "'" + withdrawal.name + "' was withdrawn"));
  }
  for (const NamedError& error : response_list.errors) {
    const Status status(error.code, error.message);
    if (NameTable::Entry* const entry = names_.FindPending(error.name)) {
      Complete(entry, status);
    } else if (!joined_) {
      early_errors_[error.name].push_back(status);
    }
  }
  if (coordinator_ == nullptr) {  // rank 0 has counted its own
    for (const std::string& key : response_list.posts) {
      CountPost(key);
      asked_for_doing_ |= key == kRank0Waits;
      if (key.compare(0, sizeof kJoinedPost - 1, kJoinedPost) == 0) life_signs_.Begin(now_);
    }
  } else if (options_.go_on) {
    const size_t said = std::min(response_list.posts.size(), posts_under_way_.size());
    posts_under_way_.erase(posts_under_way_.begin(),
                           posts_under_way_.begin() + static_cast<std::ptrdiff_t>(said));
  }
  if (!response_list.fatal.empty()) FailForGood(Status(Code::kUnavailable, response_list.fatal));
  if (response_list.finished) finished_ = true;
}

// The item's part of fusion_entries_ and entries_; not ok if it is no answer to what this rank has
// said.
Status Engine::Resolve(const ResponseItem& item, int contributors) {
  if (item.is_new && item.id != kNoId) names_.Number(item.id, item.named);
  if (item.id != kNoId && !names_.has(item.id)) {
    return Refusal("number " + std::to_string(item.id), "which rank 0 has never given");
  }
  NameTable::Entry* const entry =
      item.id != kNoId ? names_.entry(item.id) : names_.FindPending(item.named.name);
  const Signature& signature = item.id != kNoId ? names_.signature(item.id) : item.named.signature;
  const bool takes_part = entry != nullptr && !entry->submissions.empty();
  Request* const own = takes_part ? &entry->submissions.front().request : nullptr;
  const auto refuse = [&](const std::string& why) TFMPI_REQUIRES(communication_thread_) {
    return Refusal("'" + (entry != nullptr ? entry->name : item.named.name) + "'", why);
  };
  const int size = topology().size;
  const bool outside = !IsMember(signature, topology().rank);
  if (own == nullptr && !outside && ((!joined_ && !stood_aside_) || contributors == size)) {
    return refuse("for which this rank has not asked");
  }
  if (own == nullptr && !outside && IsGradient(signature)) ++missed_;
  const bool gathers = GathersRows(signature.kind);
  if (item.rows.size() != static_cast<size_t>(gathers ? size : 0)) {
    return refuse("with the rows of " + std::to_string(item.rows.size()) + " ranks");
  }
  if (gathers && item.rows[topology().rank] != (takes_part ? own->signature.shape[0] : 0)) {
    return refuse("with other rows of this rank than it has");
  }
  fusion_entries_.push_back({signature, own});
  entries_.push_back(entry);
  return Status();
}

Status Engine::Refusal(const std::string& what, const std::string& why) const {
  return Status(Code::kInternal, "rank " + std::to_string(topology().rank) + "/" +
                                     std::to_string(topology().size) + " is told by rank 0 to do " +
                                     what + ", " + why +
                                     ": a process that is no rank speaks in its name, or this is a "
                                     "mistake in tensorflow.mpi; please report it");
}

Status Engine::Transfer(const Response& response) {
  const std::vector<FusionEntry>& fusion_entries = fusion_entries_;
  const TimePoint deadline = now_ + options_.collective_timeout;
  switch (fusion_entries.front().signature.kind) {
    case OpKind::kAllreduce:
      return fusion_.Allreduce(fusion_entries, response.contributors, deadline);
    case OpKind::kAllgather:
      return fusion_.Allgather(fusion_entries.front(), response.items.front().rows, deadline);
    case OpKind::kSparseAllgather:
      return fusion_.SparseAllgather(fusion_entries.front(), response.items.front().rows,
                                     response.contributors, deadline);
    case OpKind::kBroadcast:
      return fusion_.Broadcast(fusion_entries.front(), deadline);
    case OpKind::kBarrier:
      return Status();
  }
  return Status(Code::kInternal, "unknown operation");
}

Status Engine::ResolveAll(const Response& response) {
  fusion_entries_.clear();
  entries_.clear();
  for (const ResponseItem& item : response.items) {
    const Status status = Resolve(item, response.contributors);
    if (!status.ok()) return status;
  }
  return Status();
}

void Engine::Execute(const Response& response) {
  const Status resolved = ResolveAll(response);
  if (!resolved.ok()) return Fail(resolved);
  const Span span = response_notes_.ResponseBegins(fusion_entries_);
  const Status status = options_.go_on ? ExecuteCarefully(response) : Transfer(response);
  const bool fatal =
      status.code() == Code::kDeadlineExceeded || status.code() == Code::kUnavailable;
  // Those that are left do it again, or finish it: nothing has ended.
  if (fatal && Interrupts()) return Fail(status);
  uint64_t tensors = 0, bytes = 0;
  for (const FusionEntry& fusion_entry : fusion_entries_) {
    if (fusion_entry.request == nullptr) continue;
    const Signature& own = fusion_entry.request->signature;  // allgather: rows differ by rank
    tensors += Tensors(own);
    bytes += static_cast<uint64_t>(NumElements(own.shape)) * SizeOf(own.dtype);
  }
  collectives_.fetch_add(1, std::memory_order_relaxed);
  if (status.ok()) {
    completed_.fetch_add(tensors, std::memory_order_relaxed);
    bytes_.fetch_add(bytes, std::memory_order_relaxed);
  }
  if (bytes >= kAloneBytes) now_ = Clock::now();  // that took a while
  CompleteEntries(status);
  if (fatal) Fail(status);
  if (options_.go_on && failure_.ok()) KeepHistoryShort();
}

// Those of the response that has been carried out.
void Engine::CompleteEntries(const Status& status) {
  const bool fatal =
      status.code() == Code::kDeadlineExceeded || status.code() == Code::kUnavailable;
  for (size_t i = 0; i < fusion_entries_.size(); ++i) {
    const FusionEntry& fusion_entry = fusion_entries_[i];
    if (fusion_entry.request == nullptr) continue;
    if (fatal) {
      Complete(entries_[i],
               Status(status.code(), "rank " + std::to_string(topology().rank) + "/" +
                                         std::to_string(topology().size) + ": " +
                                         Name(fusion_entry.signature.kind) + " '" +
                                         fusion_entry.request->name + "': " + status.message()));
    } else {
      Complete(entries_[i], status);
    }
    if (!failure_.ok() && !interrupted_) return;  // all else has ended with it
  }
}

// Its first request has ended. The entry may be gone after this.
void Engine::Complete(NameTable::Entry* entry, const Status& status) {
  Submission submission;
  stillness_.Stir(now_);
  told_ -= entry->told;
  entry->told = false;
  // A wish to withdraw it that was not sent would be taken for one of the next request's.
  std::vector<std::string>& withdrawn = ready_list_.withdrawn;
  withdrawn.erase(std::remove(withdrawn.begin(), withdrawn.end(), entry->name), withdrawn.end());
  NameTable::Entry* const left = names_.TakeFirst(entry, &submission);
  communication_stats_.Ended(submission.request, status.ok());
  if (left != nullptr && !left->submissions.empty()) Announce(left);
  submission.request.done(status);
}

void Engine::CompleteAll(const Status& status) {
  for (const std::string& name : names_.PendingNames()) {
    while (NameTable::Entry* const entry = names_.FindPending(name)) Complete(entry, status);
  }
}

// After this nothing is communicated any more; what is pending and what still comes fails with
// `status`.
void Engine::Fail(const Status& status) {
  if (!failure_.ok()) return;
  failure_ = status;
  if (Interrupts()) {
    interrupted_ = true;  // MeetSurvivors comes next
    return;
  }
  {
    std::lock_guard<std::mutex> lock(posted_mutex_);
    shown_failure_ = status;
  }
  TellPeers(status);
  fusion_.AbortGpus();  // before streams are waited for, of which theirs may wait for it
  CompleteAll(status);
}

}  // namespace tfmpi
