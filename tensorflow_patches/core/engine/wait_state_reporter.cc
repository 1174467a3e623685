#include "tensorflow_patches/core/engine/wait_state_reporter.h"

#include <utility>

namespace tfmpi {

void WaitStateReporter::Restart() {
  reported_ = WaitState();
  checked_at_ = TimePoint();
  asked_ = state_->published->Posted(kRank0Waits);
  posts_before_ = state_->published->posts_heard();
}

WaitState WaitStateReporter::CurrentWaitState() {
  constexpr std::chrono::milliseconds kMinReportedWait{300};
  const ScriptState& script_state = *state_->script_state;
  WaitState wait_state = script_state.Snapshot();
  if (wait_state.blocked == WaitState::Blocked::kForFile) wait_state.posts -= posts_before_;
  const NameTable::Entry* entry = nullptr;
  int waits = 0;
  pending_->names().ForEachPending([&](const NameTable::Entry& pending) {
    for (const Submission& submission : pending.submissions) {
      if (!IsWaitedFor(submission.request.purpose)) continue;
      entry = &pending;
      ++waits;
    }
  });
  wait_state.has_no_gradients &= waits == 0;  // at this point only a wait for a file has set it
  if (wait_state.blocked != WaitState::Blocked::kNo || script_state.several_threads())
    return wait_state;
  if (waits == 1 && entry->submissions.front().request.blocks) {
    if (!entry->outstanding || state_->now - entry->announced < kMinReportedWait) return wait_state;
    wait_state.blocked = WaitState::Blocked::kInRequest;
    wait_state.what = entry->name;
    wait_state.has_no_gradients = entry->submissions.front().request.has_no_gradients;
    return wait_state;
  }
  const Clock::duration patience = state_->options.coordinator.deadlock_timeout;
  if (waits == 0 || patience.count() == 0) {
    state_->idle_detector.Reset(state_->now);
  } else if (pending_->ready_list().empty() &&
             state_->idle_detector.IsIdleFor(state_->now, patience)) {
    wait_state.idle = true;
    wait_state.answers = negotiator_->answers();
  }
  return wait_state;
}

bool WaitStateReporter::ReportWaitState() {
  constexpr std::chrono::milliseconds kBetweenLooks{20};
  if (!state_->ok() || state_->joined || state_->left) return false;
  if (state_->now - checked_at_ < kBetweenLooks) return false;
  checked_at_ = state_->now;
  WaitState wait_state = CurrentWaitState();
  const int64_t asked = state_->published->Posted(kRank0Waits);
  const bool is_asked = asked != asked_ || state_->rank() == 0;
  // A change of `doing` alone is reported only by rank 0, or when rank 0 asks (kRank0Waits).
  const std::string reported_doing = std::exchange(reported_.doing, wait_state.doing);
  const bool known = wait_state == reported_ && (wait_state.doing == reported_doing || !is_asked);
  if (known) {
    reported_.doing = reported_doing;
    return false;
  }
  reported_ = wait_state;
  asked_ = asked;
  state_->reported_no_gradients |= wait_state.has_no_gradients;
  ReadyList ready_list;
  ready_list.wait_state = {std::move(wait_state)};
  negotiator_->SendReadyList(ready_list);
  return true;
}

void WaitStateReporter::ReportWaitEnd() {
  if (pending_->ready_list().empty()) return;
  if (reported_.blocked != WaitState::Blocked::kForFile) return;
  checked_at_ = TimePoint();
  ReportWaitState();
}

}  // namespace tfmpi
