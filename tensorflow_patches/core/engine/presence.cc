#include "tensorflow_patches/core/engine/presence.h"

#include <algorithm>

namespace tfmpi {

void Presence::CheckPeers() {
  Heartbeats& heartbeats = messenger_->heartbeats();
  if (!heartbeats.begun() || !state_->ok()) return;
  if (heartbeats.IsDue(state_->now)) state_->Fail(messenger_->SendHeartbeat());
  if (state_->options.coordinator.stall_timeout.count() == 0) return;
  for (const int rank : messenger_->Peers()) CheckPeer(rank);
}

void Presence::CheckPeer(int rank) {
  const Clock::duration limit = WithGrace(state_->options.coordinator.stall_timeout);
  if (messenger_->heartbeats().SilenceOf(rank) < limit) return;
  state_->Fail(Status(Code::kDeadlineExceeded,
                      state_->Me() + ": rank " + std::to_string(rank) +
                          " has been silent for longer than TF_MPI_STALL_TIMEOUT while a rank "
                          "waits for the others' scripts to end; its process is stopped or dead"));
}

void Presence::CheckCoordinator() {
  const Clock::duration timeout = state_->options.coordinator.stall_timeout;
  if (state_->rank() == 0 || !state_->ok()) return;
  std::string unanswered;
  TimePoint since = state_->now;
  pending_->names().ForEachPending([&](const NameTable::Entry& entry) {
    if (entry.announced >= since) return;
    since = entry.announced;
    unanswered = entry.name;
  });
  if (unanswered.empty()) return;
  if (timeout.count() > 0 && state_->now - since >= WithGrace(timeout)) {
    const int parent = messenger_->links().parent;
    const std::string or_parent =
        ", or that of rank " + std::to_string(parent) + ", through which it answers";
    return state_->Fail(Status(
        Code::kDeadlineExceeded,
        state_->Me() + ": rank 0 has not answered about '" + unanswered +
            "' for longer than TF_MPI_STALL_TIMEOUT; its process is stopped, hangs or has died" +
            (parent == 0 ? "" : or_parent)));
  }
  ReportSilence(unanswered, since);
}

// Rank 0 sends an empty message, as a heartbeat, with each stall report. If rank 1 hears nothing,
// it says so for all ranks.
void Presence::ReportSilence(const std::string& unanswered, TimePoint since) {
  const Clock::duration warning = state_->options.coordinator.stall_warning;
  if (state_->rank() != 1 || warning.count() == 0 || !state_->options.log) return;
  const TimePoint quiet_since =
      std::max({since, messenger_->last_heard_from_coordinator(), reported_silence_});
  if (state_->now - quiet_since < WithGrace(warning)) return;
  reported_silence_ = state_->now;
  const auto waited = std::chrono::duration_cast<std::chrono::seconds>(state_->now - since);
  state_->options.log("rank 0 has not answered about '" + unanswered + "' for " +
                      std::to_string(waited.count()) +
                      " s; its process is stopped, hangs or has died" +
                      (state_->options.coordinator.stall_timeout.count() > 0
                           ? ". An error follows after TF_MPI_STALL_TIMEOUT"
                           : ""));
}

}  // namespace tfmpi
