#include "tensorflow_patches/core/engine/negotiator.h"

#include <algorithm>
#include <utility>

namespace tfmpi {

Negotiator::Negotiator(EngineState* state, PendingRequests* pending, Messenger* messenger,
                       Executor* executor, History* history)
    : state_(state),
      pending_(pending),
      messenger_(messenger),
      executor_(executor),
      history_(history),
      // Statistics include which rank came last, which only the coordinator knows. After a death
      // nobody would know whether the dead rank had voted.
      bypass_(state->transport, state->options.response_bypass && !state->options.stats &&
                                    !state->options.shrink_on_fault) {
  Restart();
}

void Negotiator::Restart() {
  bypass_.Restart();
  coordinator_.reset();
  answers_ = 0;
  const std::deque<std::string> posts = std::exchange(unsent_posts_, {});
  if (state_->rank() != 0) return;
  coordinator_ =
      std::make_unique<Coordinator>(state_->size(), state_->options.coordinator, Clock::now());
  for (const std::string& post : posts) {
    if (!IsJoinedPost(post)) NotePost(post);  // joined posts contain ranks of the former group
  }
}

template <typename List>
void Negotiator::Trace(EngineOptions::Event event, int rank, const List& list) const {
  if (state_->options.trace) state_->options.trace(event, rank, Encode(list));
}

bool Negotiator::Exchange(bool news) {
  bool progress = VoteOrAnnounce();
  std::vector<ControlMessage> inbox;
  state_->Fail(state_->transport->Receive(&inbox));
  for (const ControlMessage& message : inbox) {
    if (state_->ok()) Handle(message);
  }
  progress |= !inbox.empty();
  if (state_->ok()) progress |= ForwardDue();
  if (coordinator_ != nullptr && state_->ok() && (news || progress)) Coordinate();
  return progress || messenger_->has_due() || (!bypass_.voted() && !pending_->ready_list().empty());
}

// Announces requests: by a vote if they include what is expected, else to the coordinator. Requests
// that a vote does not include wait until it is decided, for vote_patience at most.
bool Negotiator::VoteOrAnnounce() {
  const ReadyList& ready_list = pending_->ready_list();
  if (ready_list.empty()) return false;
  const bool fits = bypass_.Fits(ready_list);
  const bool had_voted = bypass_.voted();
  if (!had_voted && fits && bypass_.Vote(ready_list, state_->now) == Outcome::kCommitted) {
    ExecutePredicted();
    return true;
  }
  if (bypass_.voted()) {
    const bool open = bypass_.Watch() == Outcome::kOpen;
    const TimePoint patience_ends = bypass_.voted_at() + state_->options.vote_patience;
    if (open && fits && state_->now < patience_ends) return !had_voted;
    const uint64_t position = bypass_.position();
    EndBypass();
    if (bypass_.position() != position) return true;  // it was committed
  }
  TellCoordinator();
  return true;
}

// Rejects the vote at this position or, if it was already committed, executes its list.
void Negotiator::EndBypass() {
  if (bypass_.End() == Outcome::kCommitted) ExecutePredicted();
}

void Negotiator::TellCoordinator() {
  do {  // again if it executed a committed list, which advances the position
    EndBypass();
  } while (state_->ok() && bypass_.Look() != Outcome::kRejected);
  if (state_->ok() && !pending_->ready_list().empty()) SendReadyList(pending_->TakeReadyList());
}

void Negotiator::SendReadyList(const ReadyList& ready_list) {
  if (coordinator_ != nullptr && !messenger_->relays())
    return OnReadyList(state_->rank(), ready_list);
  state_->Fail(messenger_->SendUp(ready_list));
}

// Call it when all ranks have voted.
void Negotiator::ExecutePredicted() {
  if (coordinator_ != nullptr) coordinator_->Predicted(bypass_.expected().back(), state_->now);
  state_->published->predicted.Add(1);
  ++answers_;
  const ResponseList& response_list = bypass_.Commit(&pending_->ready_list());
  Trace(EngineOptions::Event::kVoted, 0, response_list);
  Execute(response_list);
  RejectOutstanding();
}

// The next prediction may include requests that this rank has already announced to the coordinator.
// Then this rank will not vote, and the others should not wait for its vote.
void Negotiator::RejectOutstanding() {
  if (state_->ok() && pending_->AnyOutstanding(bypass_.expected())) bypass_.End();
}

void Negotiator::Handle(const ControlMessage& message) {
  Messenger::Incoming incoming;
  state_->Fail(messenger_->Receive(message, &incoming));
  if (!state_->ok()) return;
  for (const Announcement& announcement : incoming.announcements) {
    OnReadyList(message.source, announcement.list);
  }
  if (!incoming.response_list.empty()) ExecuteResponseList(incoming.response_list);
}

// Forwards the due announcements of this rank and its children. Returns whether there were any.
bool Negotiator::ForwardDue() {
  const std::vector<Announcement> due = messenger_->TakeDue();
  if (due.empty()) return false;
  if (coordinator_ == nullptr) {
    state_->Fail(messenger_->SendUp(due));
    return true;
  }
  for (const Announcement& announcement : due) {
    if (!state_->ok() || AnswerUnanimous(announcement)) continue;
    for (const int rank : announcement.ranks.ranks()) OnReadyList(rank, announcement.list);
  }
  return true;
}

// If all ranks have announced what is expected and the coordinator has nothing else open, answers
// without it: its decision would be the same, at a cost that grows with ranks and names.
bool Negotiator::AnswerUnanimous(const Announcement& announcement) {
  if (announcement.ranks.size() != state_->size() || !bypass_.IsExpected(announcement.list) ||
      !coordinator_->nothing_open()) {
    return false;
  }
  for (const int rank : announcement.ranks.ranks()) {
    Trace(EngineOptions::Event::kReadyList, rank, announcement.list);
  }
  coordinator_->Predicted(bypass_.expected().back(), state_->now);
  state_->published->unanimous.Add(1);
  Answer(bypass_.expected_list());
  return true;
}

// On rank 0: the announcements of `rank`.
void Negotiator::OnReadyList(int rank, const ReadyList& ready_list) {
  Trace(EngineOptions::Event::kReadyList, rank, ready_list);
  if (ready_list.joined) {
    const std::string post = JoinedPost(rank);
    state_->published->CountPost(post);
    NotePost(post);
    messenger_->heartbeats().Begin(state_->now);
  }
  coordinator_->Receive(rank, ready_list, Clock::now());
}

void Negotiator::NotePost(const std::string& post) {
  coordinator_->Post(post);
  if (state_->options.shrink_on_fault) unsent_posts_.push_back(post);
}

void Negotiator::Coordinate() {
  ResponseList response_list = coordinator_->Decide(Clock::now());
  const std::vector<std::string> notices = coordinator_->TakeNotices();
  for (const std::string& line : notices) {
    if (state_->options.log) state_->options.log(line);
  }
  // Most notices are stall reports: the heartbeat shows that rank 0 is alive (presence.h).
  if (!notices.empty() && state_->ok()) state_->Fail(messenger_->SendHeartbeat());
  if (state_->ok() && !response_list.empty()) Answer(std::move(response_list));
}

void Negotiator::Answer(ResponseList response_list) {
  // An open vote is either committed before this list is executed, or rejected.
  if (!response_list.responses.empty()) TellCoordinator();
  if (!state_->ok()) return;
  response_list.position = bypass_.position();
  state_->Fail(messenger_->SendDown(response_list, Encode(response_list)));
  if (state_->ok()) ExecuteResponseList(response_list);
}

void Negotiator::ExecuteResponseList(const ResponseList& response_list) {
  if (bypass_.voted() && !response_list.responses.empty()) TellCoordinator();
  if (!state_->ok()) return;
  if (!response_list.responses.empty()) {
    if (response_list.position != bypass_.position()) {
      return state_->Fail(
          Status(Code::kInternal, "rank " + std::to_string(state_->rank()) + " is at agreement " +
                                      std::to_string(bypass_.position()) + ", but rank 0 is at " +
                                      std::to_string(response_list.position) +
                                      "; this is a bug in tensorflow.mpi; please report it"));
    }
    bypass_.OnResponseList(response_list, pending_->names());
  }
  if (response_list.completes_requests()) ++answers_;
  Trace(EngineOptions::Event::kResponseList, 0, response_list);
  Execute(response_list);
  if (!response_list.responses.empty()) RejectOutstanding();
}

void Negotiator::Execute(const ResponseList& response_list) {
  executor_->Execute(response_list);
  if (history_ != nullptr) {
    if (!state_->ok()) return;  // the survivors agree on the rest anew
    ResponseList rest = response_list;
    rest.responses.clear();
    if (!rest.empty()) history_->Add({std::move(rest), Result()}, /*proves_all_started=*/false);
  }
  ExecuteRest(response_list);
}

void Negotiator::ExecuteRest(const ResponseList& response_list) {
  // Before the errors: an error that the other ranks ran into after this rank's withdrawal answers
  // its next request of that name.
  for (const Withdrawal& withdrawal : response_list.withdrawn) {
    NameTable::Entry* const entry = pending_->names().FindPending(withdrawal.name);
    if (withdrawal.rank != state_->rank() || entry == nullptr) continue;
    pending_->Complete(entry, WithdrawnStatus(withdrawal.name));
  }
  // An error also answers a request that is not announced yet, such as the one after a withdrawn
  // one. It is announced first, because the coordinator counts on it (TakeEarlyError).
  if (!response_list.errors.empty() && !pending_->ready_list().empty()) TellCoordinator();
  for (const NamedError& error : response_list.errors) pending_->CompleteByError(error);
  if (coordinator_ == nullptr) {  // rank 0 has already counted its own posts
    for (const std::string& post : response_list.posts) {
      state_->published->CountPost(post);
      if (IsJoinedPost(post)) messenger_->heartbeats().Begin(state_->now);
    }
  } else if (state_->options.shrink_on_fault) {
    const size_t sent = std::min(response_list.posts.size(), unsent_posts_.size());
    unsent_posts_.erase(unsent_posts_.begin(),
                        unsent_posts_.begin() + static_cast<std::ptrdiff_t>(sent));
  }
  if (!response_list.fatal.empty()) {
    state_->FailForGood(Status(Code::kUnavailable, response_list.fatal));
  }
  if (response_list.finished) state_->finished = true;
}

}  // namespace tfmpi
