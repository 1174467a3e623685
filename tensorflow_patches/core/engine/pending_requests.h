// The requests of this rank that have not ended, and what the coordinator is to be told of them.
//
// Of each name one request at a time is announced; the next is when that has ended. Callbacks of
// requests run in Withdraw, Complete and CompleteAll. Communication thread.

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

// How a request of this name ends that was withdrawn.
Status Withdrawn(const std::string& name);

class PendingRequests {
 public:
  // By name, in their order.
  using Errors = std::unordered_map<std::string, std::deque<Status>>;

  // `state` outlives it. `send_now`: sends all that is to be said, by TakeReadyList.
  PendingRequests(EngineState* state, std::function<void()> send_now)
      : state_(state), send_now_(std::move(send_now)) {}

  void Add(Submission&& submission);
  void Withdraw(Ticket ticket);
  // What data sets have made ahead, when this rank's script has ended: nobody will use it, and a
  // peer whose data set has not come so far does not ask.
  void WithdrawAhead();
  // The first request of the entry has ended. The entry may be gone after this.
  void Complete(NameTable::Entry* entry, const Status& status);
  void CompleteAll(const Status& status);
  // By an error that all ranks are told of: the pending request of this name, or else the next.
  void CompleteByError(const NamedError& error);

  // What is to be said next. Where this rank has voted it holds all that is expected.
  ReadyList& ready_list() { return ready_list_; }
  const ReadyList& ready_list() const { return ready_list_; }
  // It is said, to the coordinator.
  ReadyList TakeReadyList();
  // Whether the coordinator has been told of one of these, and has not answered.
  bool AnyOutstanding(const std::vector<NameId>& names) const;

  // A group of other ranks begins, which knows of nothing.
  void Restart();
  void AnnounceAll();

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
  int outstanding_ = 0;  // entries that are outstanding
  // Agreed on for names that were not yet submitted here.
  Errors early_errors_;
  Errors former_errors_;  // of former groups, which nobody counts any more
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_ENGINE_PENDING_REQUESTS_H_
