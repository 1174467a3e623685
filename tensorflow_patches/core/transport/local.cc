#include "tensorflow_patches/core/transport/local.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <utility>

#include "tensorflow_patches/core/cpu/cores.h"

namespace tfmpi {

enum class Collective { kAllreduce, kAllgather, kBroadcast, kFinalize };

// One rank's part in the current collective.
struct Part {
  Collective kind;
  const void* in;
  void* out;
  std::vector<size_t> sizes;  // allgather: bytes of each rank; broadcast: {bytes}
  Reduction reduction = {};   // allreduce
  int root = 0;               // broadcast

  bool Matches(const Part& other) const {
    return kind == other.kind && sizes == other.sizes && root == other.root &&
           reduction.count == other.reduction.count && reduction.type == other.reduction.type &&
           reduction.op == other.reduction.op && reduction.scale == other.reduction.scale;
  }
};

struct LocalGroup::Shared {
  explicit Shared(int size)
      : size(size),
        parts(size),
        inboxes(size),
        woken(size),
        numbers(size * Transport::kSharedNumbers) {}

  const int size;
  std::mutex mutex;
  std::condition_variable collective_ended;
  std::vector<Part> parts;  // guarded by mutex, like all below
  int arrived = 0;
  int64_t collectives = 0;  // that have ended
  std::string broken;       // not empty: why the group is unusable
  std::vector<std::vector<ControlMessage>> inboxes;
  std::vector<char> woken;  // by rank: whether to end its Wait
  std::condition_variable notified;
  std::atomic<uint64_t> word{0};  // not guarded, nor are the numbers
  std::vector<std::atomic<int64_t>> numbers;

  Status Run(int rank, Part part, TimePoint deadline);
  void Execute();
};

namespace {

void Allreduce(const std::vector<Part>& parts) {
  const Reduction& reduction = parts[0].reduction;
  std::vector<char> result(reduction.count * SizeOf(reduction.type));
  std::vector<const void*> sources;
  for (const Part& part : parts) sources.push_back(part.in);
  Reduce(reduction, sources.data(), static_cast<int>(sources.size()), reduction.count,
         result.data(), nullptr);
  for (const Part& part : parts) {
    if (!result.empty()) std::memcpy(part.out, result.data(), result.size());
  }
}

void Allgather(const std::vector<Part>& parts) {
  for (const Part& receiver : parts) {
    char* out = static_cast<char*>(receiver.out);
    for (size_t r = 0; r < parts.size(); ++r) {
      const size_t bytes = receiver.sizes[r];
      if (bytes != 0) std::memmove(out, parts[r].in, bytes);
      out += bytes;
    }
  }
}

void Broadcast(const std::vector<Part>& parts) {
  const Part& root = parts[parts[0].root];
  for (const Part& part : parts) {
    if (part.out != root.out) std::memcpy(part.out, root.out, part.sizes[0]);
  }
}

}  // namespace

void LocalGroup::Shared::Execute() {
  for (int r = 1; r < size; ++r) {
    if (!parts[r].Matches(parts[0])) {
      broken = "rank " + std::to_string(r) + " and rank 0 called different collectives";
      return;
    }
  }
  switch (parts[0].kind) {
    case Collective::kAllreduce:
      return Allreduce(parts);
    case Collective::kAllgather:
      return Allgather(parts);
    case Collective::kBroadcast:
      return Broadcast(parts);
    case Collective::kFinalize:
      return;
  }
}

// The last rank to arrive does the work for all, under the lock, so that no rank's buffer can
// disappear meanwhile.
Status LocalGroup::Shared::Run(int rank, Part part, TimePoint deadline) {
  std::unique_lock<std::mutex> lock(mutex);
  if (!broken.empty()) return Status(Code::kUnavailable, broken);
  parts[rank] = std::move(part);
  const int64_t before = collectives;
  if (++arrived == size) {
    Execute();
    arrived = 0;
    ++collectives;
    collective_ended.notify_all();
  } else if (!collective_ended.wait_until(
                 lock, deadline, [&] { return collectives != before || !broken.empty(); })) {
    broken = "rank " + std::to_string(rank) + " gave up waiting in a collective";
    collective_ended.notify_all();
    return Status(Code::kDeadlineExceeded, broken);
  }
  return broken.empty() ? Status() : Status(Code::kUnavailable, broken);
}

namespace {

class LocalTransport : public Transport {
 public:
  LocalTransport(std::shared_ptr<LocalGroup::Shared> shared, int rank)
      : shared_(std::move(shared)) {
    topology_ = {
        rank, shared_->size, rank, shared_->size, 1, CountCores(AllowedCores(), QuotaCores())};
  }

  const Topology& topology() const override { return topology_; }
  std::string description() const override { return "local (threads of one process)"; }

  Status Send(int peer, const std::string& bytes) override {
    std::lock_guard<std::mutex> lock(shared_->mutex);
    if (!shared_->broken.empty()) return Status(Code::kUnavailable, shared_->broken);
    shared_->inboxes[peer].push_back({topology_.rank, bytes});
    shared_->notified.notify_all();
    return Status();
  }

  void Wait(Clock::duration limit, bool, const std::function<bool()>& ready) override {
    // A Wake during `ready`, which runs without the lock, is recorded in `woken`.
    const bool is_ready = ready();
    std::unique_lock<std::mutex> lock(shared_->mutex);
    char& woken = shared_->woken[topology_.rank];
    const auto has_news = [&] { return woken != 0 || !shared_->inboxes[topology_.rank].empty(); };
    if (!is_ready) shared_->notified.wait_for(lock, limit, has_news);
    woken = 0;
  }

  bool MayPoll() const override { return topology_.size <= topology_.cores; }

  std::atomic<uint64_t>* SharedWord() override { return &shared_->word; }
  std::atomic<int64_t>* SharedNumbers(int rank) override {
    return &shared_->numbers[rank * kSharedNumbers];
  }
  void WakePeers() override {
    std::lock_guard<std::mutex> lock(shared_->mutex);
    shared_->woken.assign(shared_->size, 1);
    shared_->notified.notify_all();
  }

  void Wake() override {
    std::lock_guard<std::mutex> lock(shared_->mutex);
    shared_->woken[topology_.rank] = 1;
    shared_->notified.notify_all();
  }

  Status Receive(std::vector<ControlMessage>* inbox) override {
    std::lock_guard<std::mutex> lock(shared_->mutex);
    if (!shared_->broken.empty()) return Status(Code::kUnavailable, shared_->broken);
    auto& mine = shared_->inboxes[topology_.rank];
    std::move(mine.begin(), mine.end(), std::back_inserter(*inbox));
    mine.clear();
    return Status();
  }

  Status Allreduce(const void* in, void* out, const Reduction& reduction,
                   TimePoint deadline) override {
    return shared_->Run(topology_.rank, {Collective::kAllreduce, in, out, {}, reduction}, deadline);
  }

  Status Allgather(const void* in, void* out, const std::vector<size_t>& bytes,
                   TimePoint deadline) override {
    return shared_->Run(topology_.rank, {Collective::kAllgather, in, out, bytes}, deadline);
  }

  Status Broadcast(void* data, size_t bytes, int root, TimePoint deadline) override {
    return shared_->Run(topology_.rank,
                        {Collective::kBroadcast, data, data, {bytes}, Reduction(), root}, deadline);
  }

  Status Finalize() override {
    return shared_->Run(topology_.rank, {Collective::kFinalize, nullptr, nullptr, {}},
                        Clock::now() + std::chrono::seconds(30));
  }

 private:
  std::shared_ptr<LocalGroup::Shared> shared_;
  Topology topology_;
};

}  // namespace

LocalGroup::LocalGroup(int size) : shared_(std::make_shared<Shared>(size)) {}
LocalGroup::~LocalGroup() = default;

std::unique_ptr<Transport> LocalGroup::CreateTransport(int rank) {
  return std::make_unique<LocalTransport>(shared_, rank);
}

void LocalGroup::Break(const std::string& reason) {
  std::lock_guard<std::mutex> lock(shared_->mutex);
  shared_->broken = reason;
  shared_->woken.assign(shared_->size, 1);
  shared_->collective_ended.notify_all();
  shared_->notified.notify_all();
}

}  // namespace tfmpi
