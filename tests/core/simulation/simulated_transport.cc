#include "tests/core/simulation/simulated_transport.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace tfmpi {

std::unique_ptr<Transport> Simulation::CreateTransport(int rank) {
  if (options_.node) return CreateNodeTransport(rank);
  return std::make_unique<SimulatedTransport>(this, rank);
}

// Message::content omits the envelope, which numbers the message.
constexpr size_t kEnvelopeBytes = 8;

void Simulation::Send(int from, int to, const std::string& bytes) {
  if (current_ != nullptr) current_->said = true;
  std::string changed = bytes;
  Fate fate;
  if (options_.on_message && !abandoning_) fate = options_.on_message(from, to, &changed);
  std::deque<Message>& way = to_[to][from];
  TimePoint there = now_ + fate.latency;
  if (!way.empty()) there = std::max(there, way.back().there);  // none overtakes another
  const uint64_t content = std::hash<std::string>()(changed.substr(kEnvelopeBytes));
  for (int copy = 0; copy < fate.copies; ++copy) {
    way.push_back({there, ++messages_, changed, content});
  }
}

bool Simulation::HasMessage(int rank) const {
  const auto has = [this](const std::deque<Message>& way) {
    return !way.empty() && way.front().there <= now_;
  };
  return std::any_of(to_[rank].begin(), to_[rank].end(), has);
}

bool Simulation::HasLeftMessages() const {
  return std::any_of(to_.begin(), to_.end(), [](const auto& ways) {
    return std::any_of(ways.begin(), ways.end(), [](const auto& way) { return !way.empty(); });
  });
}

// In the order of their arrival, and so in each sender's order.
void Simulation::Receive(int rank, std::vector<ControlMessage>* inbox) {
  if (current_ != nullptr) current_->said = false;
  while (true) {
    std::deque<Message>* first = nullptr;
    int source = 0;
    for (int from = 0; from < options_.ranks; ++from) {
      std::deque<Message>& way = to_[rank][from];
      if (way.empty() || way.front().there > now_) continue;
      const auto when = [](const Message& one) { return std::make_pair(one.there, one.order); };
      if (first != nullptr && when(first->front()) < when(way.front())) continue;
      first = &way;
      source = from;
    }
    if (first == nullptr) return;
    if (current_ != nullptr) {
      Note(static_cast<uint64_t>(source));
      Note(first->front().content);
    }
    inbox->push_back({source, std::move(first->front().bytes)});
    first->pop_front();
  }
}

bool Simulation::Part::Matches(const Part& other) const {
  return kind == other.kind && sizes == other.sizes && root == other.root &&
         reduction.count == other.reduction.count && reduction.type == other.reduction.type &&
         reduction.op == other.reduction.op && reduction.scale == other.reduction.scale;
}

// The last rank to arrive does the work for all. A rank that times out removes its part, so no
// other rank succeeds either.
Status Simulation::Collect(int rank, Part part, TimePoint deadline) {
  if (options_.on_collective && !abandoning_) {
    const Status status = options_.on_collective(rank);
    if (!status.ok()) return status;
  }
  if (!broken_.empty()) return Status(Code::kUnavailable, broken_);
  parts_[rank] = std::move(part);
  arrived_[rank] = 1;
  const int64_t mine = generation_;
  if (std::all_of(arrived_.begin(), arrived_.end(), [](char one) { return one != 0; })) {
    Execute();
    std::fill(arrived_.begin(), arrived_.end(), 0);
    ++generation_;
    return Status();
  }
  WaitUntil([this, mine] { return generation_ != mine || !broken_.empty(); }, deadline);
  if (generation_ != mine) return Status();
  arrived_[rank] = 0;
  if (!broken_.empty()) return Status(Code::kUnavailable, broken_);
  return Status(Code::kDeadlineExceeded, "a collective did not end in time");
}

void Simulation::Execute() {
  for (int rank = 1; rank < options_.ranks; ++rank) {
    if (parts_[rank].Matches(parts_[0])) continue;
    violation_ = "rank " + std::to_string(rank) + " is in another collective than rank 0";
    return;
  }
  const Part& first = parts_[0];
  if (first.kind == Collective::kAllreduce) {
    const Reduction& reduction = first.reduction;
    std::vector<char> result(reduction.count * SizeOf(reduction.type));
    std::vector<const void*> sources;
    for (const Part& part : parts_) sources.push_back(part.in);
    Reduce(reduction, sources.data(), options_.ranks, reduction.count, result.data(), nullptr);
    for (const Part& part : parts_) {
      if (!result.empty()) std::memcpy(part.out, result.data(), result.size());
    }
  } else if (first.kind == Collective::kAllgather) {
    for (const Part& part : parts_) {
      char* out = static_cast<char*>(part.out);
      for (int rank = 0; rank < options_.ranks; ++rank) {
        const size_t bytes = part.sizes[rank];
        if (bytes != 0) std::memmove(out, parts_[rank].in, bytes);
        out += bytes;
      }
    }
  } else if (first.kind == Collective::kBroadcast) {
    const Part& root = parts_[first.root];
    for (const Part& part : parts_) {
      if (part.out != root.out) std::memcpy(part.out, root.out, part.sizes[0]);
    }
  }
}

}  // namespace tfmpi
