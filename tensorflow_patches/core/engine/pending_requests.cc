#include "tensorflow_patches/core/engine/pending_requests.h"

#include <algorithm>
#include <utility>

namespace tfmpi {
namespace {

// Removes the first error of this name.
bool TakeError(PendingRequests::Errors* errors, const std::string& name, Status* error) {
  const auto found = errors->find(name);
  if (found == errors->end()) return false;
  *error = found->second.front();
  found->second.pop_front();
  if (found->second.empty()) errors->erase(found);
  return true;
}

}  // namespace

Status WithdrawnStatus(const std::string& name) {
  return Status(Code::kCancelled, "'" + name + "' was withdrawn");
}

void PendingRequests::Add(Submission&& submission) {
  state_->idle_detector.Reset(state_->now);
  state_->stats.Submitted(submission.request);
  NameTable::Entry* const entry = names_.Add(std::move(submission));
  if (entry->submissions.size() == 1) Announce(entry);
}

// Adds the entry's first request to the ready list. May complete it, and so delete the entry.
void PendingRequests::Announce(NameTable::Entry* entry) {
  Status error;
  if (TakeError(&former_errors_, entry->name, &error)) return Complete(entry, error);
  entry->announced = state_->now;
  const Request& request = entry->submissions.front().request;
  const Signature& signature = request.signature;
  const NameId id = names_.IdOf(*entry, signature);
  if (id == kNoId) {
    ready_list_.requests.push_back({entry->name, signature, request.fingerprint, request.purpose});
  } else if (GathersRows(signature.kind)) {
    ready_list_.gathers.push_back({id, signature.shape[0]});
  } else {
    ready_list_.ready.push_back(id);
  }
  if (!TakeError(&early_errors_, entry->name, &error)) return;
  // Sent at once: the next request of this name must not share a ready list with this one, since a
  // list contains a number only once, and the coordinator reads all numbers before the names.
  const std::string name = entry->name;
  if (state_->ok()) send_now_();
  if (NameTable::Entry* const pending = names_.FindPending(name)) Complete(pending, error);
}

void PendingRequests::Withdraw(Ticket ticket) {
  NameTable::Entry* const entry = names_.FindPending(ticket);
  if (entry == nullptr) return;
  std::vector<Submission>& submissions = entry->submissions;
  if (submissions.front().ticket == ticket) {
    if (entry->withdrawn) return;
    // Its data stays until the coordinator has answered: the ranks may be about to agree on it.
    ready_list_.withdrawn.push_back(entry->name);
    entry->withdrawn = true;
    return;
  }
  const auto queued =
      std::find_if(submissions.begin(), submissions.end(),
                   [ticket](const Submission& submission) { return submission.ticket == ticket; });
  state_->stats.Ended(queued->request, false);
  const auto done = std::move(queued->request.done);
  submissions.erase(queued);
  done(WithdrawnStatus(entry->name));
}

void PendingRequests::WithdrawAhead() {
  std::vector<Ticket> ahead;
  names_.ForEachPending([&ahead](const NameTable::Entry& entry) {
    const Submission& first = entry.submissions.front();
    if (first.request.purpose == Purpose::kData) ahead.push_back(first.ticket);
  });
  for (const Ticket ticket : ahead) Withdraw(ticket);
}

void PendingRequests::Complete(NameTable::Entry* entry, const Status& status) {
  Submission submission;
  state_->idle_detector.Reset(state_->now);
  outstanding_ -= entry->outstanding;
  entry->outstanding = false;
  // An unsent withdrawal would be taken for one of the next request.
  std::vector<std::string>& withdrawn = ready_list_.withdrawn;
  withdrawn.erase(std::remove(withdrawn.begin(), withdrawn.end(), entry->name), withdrawn.end());
  NameTable::Entry* const kept = names_.TakeFirst(entry, &submission);
  state_->stats.Ended(submission.request, status.ok());
  if (kept != nullptr && !kept->submissions.empty()) Announce(kept);
  submission.request.done(status);
}

void PendingRequests::CompleteAll(const Status& status) {
  for (const std::string& name : names_.PendingNames()) {
    while (NameTable::Entry* const entry = names_.FindPending(name)) Complete(entry, status);
  }
}

void PendingRequests::CompleteByError(const NamedError& error) {
  const Status status(error.code, error.message);
  if (NameTable::Entry* const entry = names_.FindPending(error.name)) {
    Complete(entry, status);
  } else if (!state_->joined) {
    early_errors_[error.name].push_back(status);
  }
}

ReadyList PendingRequests::TakeReadyList() {
  std::sort(ready_list_.ready.begin(), ready_list_.ready.end());
  for (const NameId id : ready_list_.ready) MarkOutstanding(names_.entry(id));
  for (const KnownGather& gather : ready_list_.gathers) MarkOutstanding(names_.entry(gather.id));
  for (const NamedSignature& named : ready_list_.requests) {
    MarkOutstanding(names_.FindPending(named.name));
  }
  return std::exchange(ready_list_, ReadyList());
}

void PendingRequests::MarkOutstanding(NameTable::Entry* entry) {
  if (entry == nullptr || entry->submissions.empty() || entry->outstanding) return;
  entry->outstanding = true;
  ++outstanding_;
}

bool PendingRequests::AnyOutstanding(const std::vector<NameId>& names) const {
  if (outstanding_ == 0) return false;
  return std::any_of(names.begin(), names.end(),
                     [this](NameId id) { return names_.entry(id)->outstanding; });
}

void PendingRequests::Restart() {
  ready_list_ = ReadyList();
  ready_list_.joined = state_->joined;
  ready_list_.leaving = state_->leaving;
  outstanding_ = 0;
  names_.Restart();
  for (auto& [name, errors] : early_errors_) {
    std::deque<Status>& former = former_errors_[name];
    former.insert(former.end(), errors.begin(), errors.end());
  }
  early_errors_.clear();
}

void PendingRequests::AnnounceAll() {
  names_.ForEachInOrder([this](NameTable::Entry* entry) { Announce(entry); });
}

}  // namespace tfmpi
