// The unfinished requests of this rank, and what it has yet to announce to the coordinator.
//
// For each name one request at a time is announced, the next when that has ended. Functions that
// add, withdraw, announce or complete requests may run `done`. Communication thread.

#ifndef TFMPI_CORE_ENGINE_PENDING_REQUESTS_H_
#define TFMPI_CORE_ENGINE_PENDING_REQUESTS_H_

#include <deque>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "tensorflow_patches/core/agreement/message.h"
#include "tensorflow_patches/core/agreement/name_table.h"
#include "tensorflow_patches/core/engine/engine_state.h"

namespace tfmpi {

// The status with which a withdrawn request of this name ends.
Status WithdrawnStatus(const std::string& name);

class PendingRequests {
 public:
  // By name, in the order in which they arrived.
  using Errors = std::unordered_map<std::string, std::deque<Status>>;

  // `state` outlives it. `send_now`: sends all announcements, which it gets from TakeReadyList.
  PendingRequests(EngineState* state, std::function<void()> send_now)
      : state_(state), send_now_(std::move(send_now)) {}

  void Add(Submission&& submission);
  void Withdraw(Ticket ticket);
  // Withdraws what datasets have requested ahead, when this rank's script has ended: the results
  // are no longer needed, and a peer whose dataset is not that far will not request them.
  void WithdrawAhead();
  // The first request of the entry has ended. This may delete the entry.
  void Complete(NameTable::Entry* entry, const Status& status);
  void CompleteAll(const Status& status);
  // An error sent to all ranks completes the pending request of this name, or else the next one. In
  // either case that request is announced first, because the coordinator counts it.
  void CompleteByError(const NamedError& error);

  // The next announcements. While a vote is open, they include everything expected (bypass.h).
  ReadyList& ready_list() { return ready_list_; }
  const ReadyList& ready_list() const { return ready_list_; }
  // Takes them, to be sent to the coordinator.
  ReadyList TakeReadyList();
  // Whether one of these is announced to the coordinator and not answered.
  bool AnyOutstanding(const std::vector<NameId>& names) const;

  // For a new group of ranks, to which nothing has been announced.
  void Restart();
  void AnnounceAll();  // call it when the other parts have restarted, too

  NameTable& names() { return names_; }
  const NameTable& names() const { return names_; }
  int outstanding() const { return outstanding_; }
  const Errors& early_errors() const { return early_errors_; }

 private:
  void Announce(NameTable::Entry* entry);
  void MarkOutstanding(NameTable::Entry* entry);

  EngineState* const state_;
  const std::function<void()> send_now_;
  NameTable names_;
  ReadyList ready_list_;
  int outstanding_ = 0;  // the number of entries that are NameTable::Entry::outstanding
  // For names that were not submitted here when the ranks agreed on the error.
  Errors early_errors_;
  Errors former_errors_;  // of former groups, which no coordinator counts any more
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_ENGINE_PENDING_REQUESTS_H_
