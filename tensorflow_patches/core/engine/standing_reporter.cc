#include "tensorflow_patches/core/engine/standing_reporter.h"

#include <utility>

namespace tfmpi {

void StandingReporter::Restart() {
  told_standing_ = Standing();
  stood_at_ = TimePoint();
  asked_ = state_->published->Posted(kRank0Waits);
}

Standing StandingReporter::Stand() {
  // Shorter waits need no word.
  constexpr std::chrono::milliseconds kLong{300};
  const Whereabouts& whereabouts = *state_->whereabouts;
  Standing standing = whereabouts.Look();
  const NameTable::Entry* entry = nullptr;
  int waits = 0;
  pending_->names().ForEachPending([&](const NameTable::Entry& pending) {
    for (const Submission& submission : pending.submissions) {
      if (!IsWaitedFor(submission.request.purpose)) continue;
      entry = &pending;
      ++waits;
    }
  });
  standing.gives_nothing &= waits == 0;
  if (standing.blocked != Standing::Blocked::kNo || whereabouts.several_threads()) return standing;
  if (waits == 1 && entry->submissions.front().request.blocks) {
    if (!entry->told || state_->now - entry->announced < kLong) return standing;
    standing.blocked = Standing::Blocked::kInRequest;
    standing.what = entry->name;
    standing.gives_nothing = entry->submissions.front().request.gives_nothing;
    return standing;
  }
  const Clock::duration patience = state_->options.coordinator.deadlock_timeout;
  if (waits == 0 || patience.count() == 0) {
    state_->stillness.Stir(state_->now);
  } else if (pending_->ready_list().empty() && state_->stillness.Lasts(state_->now, patience)) {
    standing.still = true;
    standing.answers = negotiator_->answers();
  }
  return standing;
}

bool StandingReporter::TellStanding() {
  constexpr std::chrono::milliseconds kBetweenLooks{20};
  if (!state_->ok() || state_->joined || state_->left) return false;
  if (state_->now - stood_at_ < kBetweenLooks) return false;
  stood_at_ = state_->now;
  Standing standing = Stand();
  const int64_t asked = state_->published->Posted(kRank0Waits);
  const bool is_asked = asked != asked_ || state_->rank() == 0;
  const std::string doing = std::exchange(told_standing_.doing, standing.doing);
  const bool known = standing == told_standing_ && (standing.doing == doing || !is_asked);
  if (known) {
    told_standing_.doing = doing;
    return false;
  }
  told_standing_ = standing;
  asked_ = asked;
  state_->stood_aside |= standing.gives_nothing;
  ReadyList ready_list;
  ready_list.standing = {std::move(standing)};
  negotiator_->SayUp(ready_list);
  return true;
}

void StandingReporter::TellThatWaitIsOver() {
  if (pending_->ready_list().empty()) return;
  if (told_standing_.blocked != Standing::Blocked::kForFile) return;
  stood_at_ = TimePoint();
  TellStanding();
}

}  // namespace tfmpi
