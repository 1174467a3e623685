// How the coordinator uses what ranks report about their waits: it continues without the gradients
// of a rank that has none to contribute, and ends a group whose ranks wait for one another.
//
// A report holds until the rank reports something else or announces a request that its script waits
// for, and at most until the rank is sent what may end its wait:
//   blocked in a request   the answer to that request
//   waits for a file       a post
//   idle                   any answer; also ends when the rank announces any request
// Posts and answers are counted, so that the coordinator recognizes a report that was sent before
// one of them arrived.

#include <algorithm>
#include <utility>

#include "tensorflow_patches/core/agreement/coordinator.h"
#include "tensorflow_patches/core/transport/roll_call.h"

namespace tfmpi {
namespace {

constexpr int kMaxRanksDescribed = 4;
// A deadlock must last this long, or `deadlock_timeout` if that is shorter: a message in transit,
// which takes milliseconds, may resolve it.
constexpr std::chrono::milliseconds kSettled{500};

}  // namespace

void Coordinator::SetWaitState(int rank, const WaitState& wait_state) {
  WaitState& stored = peers_[rank].wait_state;
  stored = wait_state;
  if (stored.blocked == WaitState::Blocked::kInRequest) {
    const auto it = pending_.find(stored.what);
    // If it was answered while the report was in transit, the wait is over.
    if (it == pending_.end() || !it->second.ready[rank]) stored.blocked = WaitState::Blocked::kNo;
  }
  if (HasNoGradients(rank)) CheckAllReady();
}

// A rank that was blocked in the request of this name can continue.
void Coordinator::EndWaitsIn(const std::string& name) {
  for (Peer& peer : peers_) {
    WaitState& wait_state = peer.wait_state;
    if (wait_state.blocked == WaitState::Blocked::kInRequest && wait_state.what == name) {
      wait_state.blocked = WaitState::Blocked::kNo;
    }
  }
}

// Whether the rank waits, and has no gradients to contribute until rank 0 ends the wait.
bool Coordinator::HasNoGradients(int rank) const {
  const WaitState& wait_state = peers_[rank].wait_state;
  if (!wait_state.has_no_gradients) return false;
  if (wait_state.blocked == WaitState::Blocked::kForFile) return wait_state.posts == posts_;
  return wait_state.blocked == WaitState::Blocked::kInRequest;
}

bool Coordinator::Lacks(const Pending& pending, int rank) const {
  if (pending.ready[rank] || peers_[rank].joined) return false;
  if (!IsMember(pending.named.signature, rank)) return false;
  const Purpose purpose = pending.named.purpose;
  const Signature& signature = pending.named.signature;
  const bool of_update = IsAverage(signature) || signature.kind == OpKind::kSparseAllgather;
  const bool can_do_without =
      purpose == Purpose::kBackground || (purpose == Purpose::kStep && of_update);
  return !can_do_without || !HasNoGradients(rank);
}

// The requests that block `rank`; empty if it can continue by itself, or waits for a file of rank
// 0: that wait ends at the latest when rank 0 waits for this rank (python/_src/files/waits.py).
std::vector<const Coordinator::Pending*> Coordinator::WaitsIn(int rank) const {
  const WaitState& wait_state = peers_[rank].wait_state;
  std::vector<const Pending*> found;
  if (wait_state.blocked == WaitState::Blocked::kInRequest) {
    found.push_back(&pending_.at(wait_state.what));
  } else if (wait_state.blocked == WaitState::Blocked::kNo && wait_state.idle &&
             wait_state.answers == answers_) {
    for (const auto& [name, pending] : pending_) {
      if (pending.ready[rank] && IsWaitedFor(pending.named.purpose)) found.push_back(&pending);
    }
  }
  return found;
}

// Whether `rank` waits for a rank of `stuck` in at least one request. One is enough, since a step
// needs all of its requests.
bool Coordinator::WaitsForAny(int rank, const std::vector<bool>& stuck) const {
  if (peers_[rank].joined) return false;
  const std::vector<const Pending*> waits = WaitsIn(rank);
  return std::any_of(waits.begin(), waits.end(), [&](const Pending* pending) {
    for (int r = 0; r < size_; ++r) {
      if (stuck[r] && Lacks(*pending, r)) return true;
    }
    return false;
  });
}

// By rank: the largest set of ranks in which each waits for another one of the set.
std::vector<bool> Coordinator::FindStuck() const {
  std::vector<bool> stuck(size_, true);
  for (bool changed = true; changed;) {
    changed = false;
    for (int r = 0; r < size_; ++r) {
      if (!stuck[r] || WaitsForAny(r, stuck)) continue;
      stuck[r] = false;
      changed = true;
    }
  }
  return stuck;
}

void Coordinator::CheckDeadlock(TimePoint now) {
  if (options_.deadlock_timeout.count() == 0) return;
  const std::vector<bool> stuck = FindStuck();
  const bool any = std::find(stuck.begin(), stuck.end(), true) != stuck.end();
  if (!std::exchange(deadlocked_, any) || !any) {
    deadlocked_since_ = now;
    return;
  }
  const Clock::duration patience = std::min<Clock::duration>(kSettled, options_.deadlock_timeout);
  if (now - deadlocked_since_ >= patience && next_.fatal.empty()) {
    next_.fatal = DescribeDeadlock(stuck);
  }
}

std::string Coordinator::DescribeDeadlock(const std::vector<bool>& stuck) const {
  std::string text = "the ranks wait for one another, so none can continue: ";
  int described = 0;
  for (int rank = 0; rank < size_; ++rank) {
    if (!stuck[rank] || ++described > kMaxRanksDescribed) continue;
    const std::vector<const Pending*> waits = WaitsIn(rank);
    const Pending* oldest = nullptr;
    std::vector<int> missing;
    for (const Pending* pending : waits) {
      std::vector<int> lacking;
      for (int r = 0; r < size_; ++r) {
        if (stuck[r] && Lacks(*pending, r)) lacking.push_back(r);
      }
      const bool older = oldest == nullptr || pending->since < oldest->since;
      if (lacking.empty() || !older) continue;
      oldest = pending;
      missing = std::move(lacking);
    }
    if (described > 1) text += "; ";
    text += RankAndDoing(rank) + " waits for " + NameRanks(missing) + " in " +
            Name(oldest->named.signature.kind) + " '" + oldest->named.name + "'";
  }
  if (described > kMaxRanksDescribed) {
    text += "; and " + std::to_string(described - kMaxRanksDescribed) + " more";
  }
  return text +
         ". All ranks must take the same steps in the same order: make sure that these depend "
         "neither on the rank nor on how much data the rank has";
}

}  // namespace tfmpi
