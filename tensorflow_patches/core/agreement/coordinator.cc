#include "tensorflow_patches/core/agreement/coordinator.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "tensorflow_patches/core/transport/roll_call.h"

namespace tfmpi {
namespace {

std::string Seconds(Clock::duration duration) {
  char text[32];
  const double seconds = std::chrono::duration<double>(duration).count();
  std::snprintf(text, sizeof text, seconds < 10 ? "%.1f s" : "%.0f s", seconds);
  return text;
}

// Whether it gets a number: a kAllgather's name, such as that of a batch, is often used only once.
bool Recurs(const Signature& signature) { return signature.kind != OpKind::kAllgather; }

// A script may call one collective with a new shape each time, which must not fill the memory:
// beyond this limit, requests are sent by name.
constexpr size_t kMaxIdsOfAName = 16;

bool CanShareBuffer(const Signature& a, const Signature& b) {
  return a.op == b.op && WireType(a.dtype) == WireType(b.dtype) && a.on_gpu == b.on_gpu &&
         a.members == nullptr && b.members == nullptr;
}

}  // namespace

Coordinator::Coordinator(int size, const CoordinatorOptions& options, TimePoint now)
    : size_(size), options_(options), peers_(size), last_ready_(size), last_stall_check_(now) {
  for (Peer& peer : peers_) peer.last_time = now;
}

void Coordinator::Receive(int rank, const ReadyList& ready_list, TimePoint now) {
  const auto check_known = [&](NameId id, bool gathers) {
    const bool known = id < by_id_.size() && GathersRows(by_id_[id].signature.kind) == gathers;
    if (!known) {
      Refuse(rank, "announced number " + std::to_string(id) +
                       ", which rank 0 has not assigned to " +
                       (gathers ? "a request with rows" : "a request without rows"));
    }
    return known;
  };
  for (NameId id : ready_list.ready) {
    if (check_known(id, /*gathers=*/false)) Announce(rank, by_id_[id], now);
  }
  for (const KnownGather& gather : ready_list.gathers) {
    if (!check_known(gather.id, /*gathers=*/true)) continue;
    NamedSignature named = by_id_[gather.id];
    named.signature.shape[0] = gather.rows;
    Announce(rank, named, now);
  }
  for (const NamedSignature& named : ready_list.requests) Announce(rank, named, now);
  for (const std::string& name : ready_list.withdrawn) Withdraw(rank, name);
  for (const WaitState& wait_state : ready_list.wait_state) SetWaitState(rank, wait_state);
  if (ready_list.joined) Join(rank);
  if (!ready_list.leaving.empty()) Leave(rank, ready_list.leaving);
}

void Coordinator::Announce(int rank, const NamedSignature& named, TimePoint now) {
  peers_[rank].last_name = named.name;
  peers_[rank].last_time = now;
  WaitState& wait_state = peers_[rank].wait_state;
  // A blocked rank sends only what its script does not wait for.
  if (IsWaitedFor(named.purpose)) wait_state.blocked = WaitState::Blocked::kNo;
  wait_state.idle = false;
  if (TakeEarlyError(rank, named.name)) return;
  auto [it, is_first] = pending_.try_emplace(named.name);
  Pending& pending = it->second;
  if (is_first) {
    pending.named = named;
    pending.first_rank = rank;
    pending.ready.resize(size_);
    pending.rows.resize(GathersRows(named.signature.kind) ? size_ : 0);
    pending.since = pending.warned = now;
  }
  if (pending.ready[rank]) {
    return Refuse(rank, "announced '" + named.name + "' twice before rank 0 answered");
  }
  pending.ready[rank] = true;
  ++pending.num_ready;
  NoteReady(rank, &pending, now);
  if (!EqualWithoutRows(pending.named.signature, named.signature)) {
    // In rank order, so that a job that fails twice prints the same line.
    const bool in_order = pending.first_rank < rank;
    const std::string difference =
        in_order ? DescribeDifference(named.name, pending.first_rank, pending.named.signature, rank,
                                      named.signature)
                 : DescribeDifference(named.name, rank, named.signature, pending.first_rank,
                                      pending.named.signature);
    Fail(named.name, Code::kInvalidArgument,
         "the ranks disagree on " + difference +
             "; all ranks must build the same model, and call collectives with the same dtype and "
             "shape");
    return;
  }
  if (!pending.rows.empty() && !named.signature.shape.empty()) {
    pending.rows[rank] = named.signature.shape[0];
  }
  pending.same_fingerprint &= named.fingerprint == pending.named.fingerprint;
  CheckReady(named.name);
}

// Whether an error has already answered this request of the rank, whose engine has kept the error.
// If so, decrements the count of such answers.
bool Coordinator::TakeEarlyError(int rank, const std::string& name) {
  const auto it = early_errors_.find(name);
  if (it == early_errors_.end()) return false;
  const auto times = it->second.find(rank);
  if (times == it->second.end()) return false;
  if (--times->second == 0) it->second.erase(times);
  if (it->second.empty()) early_errors_.erase(it);
  return true;
}

void Coordinator::NoteReady(int rank, Pending* pending, TimePoint now) {
  if (pending->num_ready == size_ - num_joined_ && pending->num_ready > 1 &&
      IsGradient(pending->named.signature)) {
    ++last_ready_[rank].times;
    last_ready_[rank].seconds += std::chrono::duration<double>(now - pending->latest).count();
  }
  pending->latest = now;
}

void Coordinator::Withdraw(int rank, const std::string& name) {
  auto it = pending_.find(name);
  // If not found, it was agreed on or failed before the withdrawal arrived; that answer stands.
  if (it == pending_.end() || !it->second.ready[rank]) return;
  Pending& pending = it->second;
  pending.ready[rank] = false;
  if (!pending.rows.empty()) pending.rows[rank] = 0;  // if it joins now, it contributes none
  WaitState& wait_state = peers_[rank].wait_state;
  if (wait_state.what == name) wait_state.blocked = WaitState::Blocked::kNo;
  if (--pending.num_ready == 0) {
    pending_.erase(it);
  } else {
    while (!pending.ready[pending.first_rank])
      pending.first_rank = (pending.first_rank + 1) % size_;
  }
  next_.withdrawn.push_back({rank, name});
}

void Coordinator::Join(int rank) {
  if (std::exchange(peers_[rank].joined, true)) return;
  if (++num_joined_ == size_) {
    next_.finished = true;
    return;
  }
  CheckAllReady();
}

void Coordinator::CheckAllReady() {
  std::vector<std::string> names;
  for (const auto& entry : pending_) names.push_back(entry.first);
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) CheckReady(name);
}

void Coordinator::Leave(int rank, const std::string& why) {
  if (next_.fatal.empty()) {
    next_.fatal =
        "rank " + std::to_string(rank) + "/" + std::to_string(size_) + " has stopped: " + why;
  }
}

// Ends the group: continuing could use data that this rank has not announced.
void Coordinator::Refuse(int rank, const std::string& what) {
  if (!next_.fatal.empty()) return;
  next_.fatal = "rank " + std::to_string(rank) + "/" + std::to_string(size_) + " " + what +
                ". Either another process sends messages as this rank, or this is a bug in "
                "tensorflow.mpi; please report it";
}

void Coordinator::CheckReady(const std::string& name) {
  Pending& pending = pending_.at(name);
  // Starts at the rank found last, so that not every announcement checks all ranks.
  for (int i = 0; i < size_; ++i) {
    const int r = (pending.lacking + i) % size_;
    if (!Lacks(pending, r)) continue;
    pending.lacking = r;
    return;
  }
  const std::string absent = DescribeAbsent(pending);
  const Signature& signature = pending.named.signature;
  // Whether zeros, or nothing, can stand in for the absent ranks.
  const bool can_do_without =
      absent.empty() || signature.kind == OpKind::kBarrier || GathersRows(signature.kind) ||
      (signature.kind == OpKind::kAllreduce &&
       (signature.op == ReduceOp::kAverage || signature.op == ReduceOp::kSum)) ||
      (signature.kind == OpKind::kBroadcast && pending.ready[signature.root]);
  if (!can_do_without) {
    return Fail(name, Code::kFailedPrecondition,
                Describe(signature) + " '" + name + "' needs all ranks, but " + absent +
                    "; make sure that every rank takes the same steps");
  }
  if (!absent.empty() && IsWaitedFor(pending.named.purpose)) NoteAbsent(pending, absent);
  agreed_.push_back(std::move(pending));
  pending_.erase(name);
  EndWaitsIn(name);
}

// For messages: the members that do not take part, because their script has ended or they wait for
// something else; empty if all do.
std::string Coordinator::DescribeAbsent(const Pending& pending) const {
  constexpr int kMaxListed = 8;
  std::string waits;
  std::string listed;
  int ended = 0;
  for (int r = 0; r < size_; ++r) {
    if (pending.ready[r] || !IsMember(pending.named.signature, r)) continue;
    if (peers_[r].joined) {
      if (++ended <= kMaxListed) listed += (ended == 1 ? "" : ", ") + std::to_string(r);
      continue;
    }
    const WaitState& wait_state = peers_[r].wait_state;
    const bool for_file = wait_state.blocked == WaitState::Blocked::kForFile;
    waits += (waits.empty() ? "rank " : "; rank ") + std::to_string(r) + " waits " +
             (for_file ? "for rank 0's file" : "in") + " '" + wait_state.what +
             "' and has no gradients to contribute";
  }
  if (ended == 0) return waits;
  return "the script has ended on " + std::to_string(ended) + " of " + std::to_string(size_) +
         " ranks (" + (ended == 1 ? "rank " : "ranks ") + listed +
         (ended > kMaxListed ? ", ...)" : ")") + (waits.empty() ? "" : "; ") + waits;
}

// A script usually ends on all ranks at about the same time, so a finished rank is worth a line
// only if others continue without it, and another line only if fewer remain than ever before.
void Coordinator::NoteAbsent(const Pending& pending, const std::string& absent) {
  if (pending.num_ready >= noted_contributors_) return;
  noted_contributors_ = pending.num_ready;
  const NamedSignature& named = pending.named;
  const std::string what = IsGradient(named.signature) ? "averages are now over"
                                                       : std::string(Name(named.signature.kind)) +
                                                             " '" + named.name + "' continues with";
  notices_.push_back(absent + "; " + what + " the remaining " + std::to_string(pending.num_ready) +
                     (pending.num_ready == 1 ? " rank" : " ranks"));
}

void Coordinator::Fail(const std::string& name, Code code, const std::string& message) {
  auto it = pending_.find(name);
  // A rank that has not announced its request yet finds this error when it does: TakeEarlyError.
  std::map<int, int>& errors_due = early_errors_[name];
  for (int r = 0; r < size_; ++r) {
    const bool will_announce = IsMember(it->second.named.signature, r) && !peers_[r].joined;
    if (!it->second.ready[r] && will_announce) ++errors_due[r];
  }
  if (errors_due.empty()) early_errors_.erase(name);
  pending_.erase(it);
  EndWaitsIn(name);
  next_.errors.push_back({name, code, message});
}

std::string Coordinator::RankAndDoing(int rank) const {
  const std::string& doing = peers_[rank].wait_state.doing;
  return "rank " + std::to_string(rank) + (doing.empty() ? "" : ", in " + doing + ",");
}

std::string Coordinator::StallReport(const Pending& pending, TimePoint now) const {
  std::vector<int> missing;
  std::string details;
  for (int r = 0; r < size_; ++r) {
    if (!Lacks(pending, r)) continue;
    missing.push_back(r);
    details += (details.empty() ? "" : "; ") + RankAndDoing(r);
    const bool predicted = predicted_ != kNoId && predicted_at_ > peers_[r].last_time;
    const std::string& last = predicted ? by_id_[predicted_].name : peers_[r].last_name;
    const TimePoint last_time = predicted ? predicted_at_ : peers_[r].last_time;
    details += last.empty() ? " has not asked for anything yet"
                            : " last asked for '" + last + "' " + Seconds(now - last_time) + " ago";
  }
  return std::string(Name(pending.named.signature.kind)) + " '" + pending.named.name +
         "' on rank " + std::to_string(pending.first_rank) + " has waited " +
         Seconds(now - pending.since) + " for " + NameRanks(missing) + " (" + details + ")";
}

// Requests for data count, too: at the beginning of a dataset, rank 0's script may wait in nothing
// else. So a thread of rank 0 that reads ahead may cause posts while the script goes on.
void Coordinator::PostRank0Waits(TimePoint now) {
  constexpr auto kPatience = std::chrono::milliseconds(200);
  if (now - last_rank_0_waits_post_ < kPatience) return;
  for (const auto& [name, pending] : pending_) {
    if (!pending.ready[0] || now - pending.since < kPatience) continue;
    last_rank_0_waits_post_ = now;
    Post(kRank0Waits);
    return;
  }
}

void Coordinator::CheckStalls(TimePoint now) {
  constexpr auto kInterval = std::chrono::milliseconds(50);
  if (pending_.empty()) deadlocked_ = false;
  if (now - last_stall_check_ < kInterval || pending_.empty()) return;
  last_stall_check_ = now;
  CheckDeadlock(now);
  Pending* oldest = nullptr;
  int stalled = 0;
  std::vector<std::pair<std::string, std::string>> expired;
  for (auto& [name, pending] : pending_) {
    const auto age = now - pending.since;
    if (options_.stall_timeout.count() > 0 && age >= options_.stall_timeout) {
      expired.emplace_back(name, StallReport(pending, now));
    } else if (options_.stall_warning.count() > 0 &&
               now - pending.warned >= options_.stall_warning) {
      pending.warned = now;
      ++stalled;
      if (oldest == nullptr || pending.since < oldest->since) oldest = &pending;
    }
  }
  if (oldest != nullptr) {
    std::string line = StallReport(*oldest, now);
    if (stalled > 1) {
      line += " (and " + std::to_string(stalled - 1) +
              (stalled == 2 ? " more request waits)" : " more requests wait)");
    }
    const bool expires = options_.stall_timeout.count() > 0;
    notices_.push_back(line +
                       "; ranks that are only slow will catch up; otherwise make sure that every "
                       "rank takes the same steps" +
                       (expires ? " (error after TF_MPI_STALL_TIMEOUT)" : ""));
  }
  for (const auto& [name, report] : expired) {
    Fail(name, Code::kDeadlineExceeded,
         report +
             "; TF_MPI_STALL_TIMEOUT has expired: make sure that every rank takes the same steps, "
             "or raise the timeout");
  }
  // After CheckDeadlock: a post makes wait states out of date until the ranks have received it.
  PostRank0Waits(now);
}

void Coordinator::NoteFingerprints(const Pending& pending, bool is_new) {
  const Signature& signature = pending.named.signature;
  if (fingerprints_compared_ || size_ == 1 || !IsAverage(signature)) return;
  if (pending.num_ready < size_) return;  // absent ranks may have other samples
  // Zeros on all ranks say nothing about the data; zeros on only one rank are a difference.
  if (is_new && (pending.named.fingerprint != 0 || !pending.same_fingerprint)) {
    ++first_gradients_;
    equal_gradients_ += pending.same_fingerprint;
  }
  if (is_new || first_gradients_ == 0) return;
  // A name appears for the second time: the first step is over.
  fingerprints_compared_ = true;
  if (equal_gradients_ == first_gradients_) {
    notices_.push_back(
        "in the first step the gradients of all ranks are bitwise identical, as if all ranks had "
        "the same samples; then " +
        std::to_string(size_) +
        " ranks do the work of one. In a loop over a tf.data.Dataset, use tf.mpi.shard(dataset) or "
        "set TF_MPI_SHARD=dataset. If the script generates or selects its own samples, for example "
        "in an environment, make them depend on tf.mpi.rank() and call tf.mpi.own_data() first");
  }
}

NameId Coordinator::IdOf(const NamedSignature& named) const {
  const auto it = ids_.find(named.name);
  if (it == ids_.end()) return kNoId;
  const auto same = std::find_if(it->second.begin(), it->second.end(), [&](NameId id) {
    return by_id_[id].signature == named.signature;
  });
  return same != it->second.end() ? *same : kNoId;
}

ResponseItem Coordinator::MakeItem(Pending* pending) {
  ResponseItem item;
  item.rows = std::move(pending->rows);
  pending->named.signature = WithoutRows(std::move(pending->named.signature));
  item.id = IdOf(pending->named);
  NoteFingerprints(*pending, item.id == kNoId);
  if (item.id != kNoId) return item;
  item.is_new = true;
  item.named = pending->named;
  if (!Recurs(pending->named.signature)) return item;
  std::vector<NameId>& ids = ids_[pending->named.name];
  if (ids.size() == kMaxIdsOfAName) return item;
  item.id = static_cast<NameId>(by_id_.size());
  pending->named.fingerprint = 0;  // only first gradients have one
  by_id_.push_back(pending->named);
  ids.push_back(item.id);
  return item;
}

// Successive allreduces that can share a buffer are fused, in the order in which they became ready,
// up to the threshold. A tensor of kAloneBytes or more is sent alone.
void Coordinator::Plan(ResponseList* response_list) {
  Response* open = nullptr;
  Signature open_signature;
  size_t open_bytes = 0;
  for (Pending& pending : agreed_) {
    const Signature signature = pending.named.signature;
    const bool reduces = signature.kind == OpKind::kAllreduce;
    const auto elements = static_cast<size_t>(NumElements(signature.shape));
    const size_t bytes = reduces ? WireBytes(signature.dtype, elements) : 0;
    const bool shares = reduces && bytes < kAloneBytes;
    const bool fits = open != nullptr && shares && CanShareBuffer(open_signature, signature) &&
                      open_bytes + bytes <= options_.fusion_threshold &&
                      open->contributors == pending.num_ready;
    if (!fits) {
      response_list->responses.push_back({{}, pending.num_ready});
      open = shares ? &response_list->responses.back() : nullptr;
      open_signature = signature;
      open_bytes = 0;
    }
    open_bytes += bytes;
    response_list->responses.back().items.push_back(MakeItem(&pending));
  }
  agreed_.clear();
}

ResponseList Coordinator::Decide(TimePoint now) {
  CheckStalls(now);
  ResponseList response_list = std::exchange(next_, ResponseList());
  Plan(&response_list);
  if (response_list.completes_requests()) ++answers_;
  return response_list;
}

std::vector<std::string> Coordinator::TakeNotices() { return std::exchange(notices_, {}); }

}  // namespace tfmpi
