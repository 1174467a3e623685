#include "tests/core/simulation/inspector.h"

#include <algorithm>
#include <functional>
#include <string>

namespace tfmpi {
namespace {

uint64_t HashOf(const std::string& text) { return std::hash<std::string>()(text); }
uint64_t HashOf(TimePoint time) { return static_cast<uint64_t>(time.time_since_epoch().count()); }
uint64_t HashOf(const Status& status) {
  return Mix(static_cast<uint64_t>(status.code()), HashOf(status.message()));
}

// A hash of all numbers in this order.
template <typename... Numbers>
uint64_t All(Numbers... numbers) {
  uint64_t hash = 1;
  ((hash = Mix(hash, static_cast<uint64_t>(numbers))), ...);
  return hash;
}

uint64_t HashOf(const Signature& signature) {
  uint64_t hash = All(signature.kind, signature.op, signature.dtype, signature.root);
  for (const int64_t dimension : signature.shape)
    hash = Mix(hash, static_cast<uint64_t>(dimension));
  return hash;
}

uint64_t HashOf(const NamedSignature& named) {
  return All(HashOf(named.name), HashOf(named.signature));
}

}  // namespace

// Omits tickets, because those of one name are in the order of its requests.
uint64_t Inspector::RequestsOf(const Engine& engine) {
  const Queue& queue = *engine.view().queue;
  const Drained& drained = queue.drained_;
  uint64_t hash = All(drained.submissions.size(), queue.join_asked(), queue.leave_asked(),
                      queue.stop_asked(), queue.closed_);
  for (const Submission& submission : drained.submissions) {
    hash = All(hash, HashOf(submission.request.name), HashOf(submission.request.signature));
  }
  for (const Ticket ticket : drained.withdrawals) {
    // The place of the request to withdraw, in the queue or among the pending ones.
    uint64_t which = 0, place = 0;
    for (const Submission& submission : drained.submissions) {
      ++place;
      if (submission.ticket == ticket) which = All(1, place);
    }
    engine.view().pending->names().ForEachPending([&](const NameTable::Entry& entry) {
      for (size_t i = 0; i < entry.submissions.size(); ++i) {
        if (entry.submissions[i].ticket == ticket) which = All(2, HashOf(entry.name), i);
      }
    });
    hash = All(hash, which);
  }
  for (const std::string& post : drained.posts) hash = All(hash, HashOf(post));
  return hash;
}

uint64_t Inspector::StateOf(const Engine& engine) {
  const Engine::View view = engine.view();
  const EngineState& state = *view.state;
  uint64_t early_errors = 0;
  for (const auto& [name, statuses] : view.pending->early_errors()) {
    uint64_t one = HashOf(name);
    for (const Status& status : statuses) one = Mix(one, HashOf(status));
    early_errors += one;
  }
  ReadyList ready_list = view.pending->ready_list();
  std::sort(ready_list.ready.begin(), ready_list.ready.end());  // as when it is sent
  uint64_t hash =
      All(HashOf(Encode(ready_list)), Of(view.negotiator->bypass()), view.pending->outstanding(),
          HashOf(state.now), state.joined, state.left, state.finished, HashOf(state.failure),
          Of(view.pending->names()), early_errors);
  const Heartbeats& heartbeats = view.messenger->heartbeats();
  hash = All(hash, heartbeats.begun_, HashOf(heartbeats.sent_at_), HashOf(heartbeats.looked_at_));
  for (const Clock::duration silence : heartbeats.silences_) hash = All(hash, silence.count());
  const Coordinator* const coordinator = view.negotiator->coordinator();
  return coordinator != nullptr ? All(hash, Of(*coordinator)) : hash;
}

uint64_t Inspector::Of(const NameTable& names) {
  uint64_t hash = 0;
  for (const auto& [name, entry] : names.entries_) {
    uint64_t one = All(HashOf(name), HashOf(entry.announced), entry.outstanding);
    for (const NameId id : entry.ids) one = Mix(one, id);
    for (const Submission& submission : entry.submissions) {
      one = All(one, HashOf(submission.request.signature));
    }
    hash += one;
  }
  for (const NameTable::Numbered& numbered : names.numbered_) {
    const bool is_one = numbered.entry != nullptr;
    hash = All(hash, is_one ? HashOf(numbered.entry->name) : 0, HashOf(numbered.signature));
  }
  return hash;
}

uint64_t Inspector::Of(const ResponseBypass& bypass) {
  const ResponsePredictor& predictor = bypass.predictor_;
  uint64_t hash = All(bypass.position_, bypass.voted_, bypass.voted_ ? HashOf(bypass.voted_at_) : 0,
                      predictor.current_);
  for (const ResponsePredictor::Known& known : predictor.known_) {
    hash = All(hash, known.successor, known.streak);
    for (const NameId id : known.names) hash = Mix(hash, id);
  }
  return hash;
}

// Omits which rank was first or last, which only messages mention.
uint64_t Inspector::Of(const Coordinator& coordinator) {
  const auto of_pending = [](const Coordinator::Pending& pending) {
    uint64_t one = All(HashOf(pending.named), pending.num_ready, HashOf(pending.since));
    for (const bool ready : pending.ready) one = Mix(one, ready);
    for (const int64_t rows : pending.rows) one = Mix(one, static_cast<uint64_t>(rows));
    return one;
  };
  uint64_t pending = 0, answered = 0, hash = HashOf(Encode(coordinator.next_));
  for (const auto& entry : coordinator.pending_) pending += of_pending(entry.second);
  for (const auto& [name, ranks] : coordinator.early_errors_) {
    for (const auto& [rank, times] : ranks) answered += All(HashOf(name), rank, times);
  }
  for (const auto& one : coordinator.agreed_) hash = All(hash, of_pending(one));
  for (const auto& named : coordinator.by_id_) hash = All(hash, HashOf(named));
  for (const auto& peer : coordinator.peers_) {
    const WaitState& wait_state = peer.wait_state;
    hash = All(hash, peer.joined, wait_state.blocked, HashOf(wait_state.what), wait_state.idle,
               wait_state.has_no_gradients);
  }
  return All(hash, pending, answered, HashOf(coordinator.last_stall_check_));
}

}  // namespace tfmpi
