#include "tensorflow_patches/core/transport/local.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <utility>

namespace tfmpi {

enum class Collective { kAllreduce, kAllgather, kBroadcast, kFinalize };

// One rank's part in the collective under way.
struct Part {
  Collective kind;
  const void* in;
  void* out;
  std::vector<size_t>
      sizes;  // allreduce: {count}; allgather: bytes of each rank; broadcast: {bytes}
  DataType type;
  ReduceOp op;
  int root;

  bool Matches(const Part& other) const {
    return kind == other.kind && sizes == other.sizes && type == other.type && op == other.op &&
           root == other.root;
  }
};

struct LocalGroup::Shared {
  explicit Shared(int size) : size(size), parts(size), inboxes(size) {}

  const int size;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Part> parts;  // guarded by mutex, as all below
  int arrived = 0;
  int64_t generation = 0;  // of finished collectives
  std::string broken;      // not empty: why the group is of no more use
  std::vector<std::vector<ControlMessage>> inboxes;

  Status Run(int rank, Part part, TimePoint deadline);
  void Execute();
};

namespace {

template <typename T>
void ReduceInto(T* sum, const T* in, size_t count, ReduceOp op) {
  for (size_t i = 0; i < count; ++i) {
    switch (op) {
      case ReduceOp::kMin:
        sum[i] = std::min(sum[i], in[i]);
        break;
      case ReduceOp::kMax:
        sum[i] = std::max(sum[i], in[i]);
        break;
      case ReduceOp::kProduct:
        sum[i] = static_cast<T>(sum[i] * in[i]);
        break;
      default:
        sum[i] = static_cast<T>(sum[i] + in[i]);
    }
  }
}

template <typename T>
void Allreduce(const std::vector<Part>& parts) {
  const size_t count = parts[0].sizes[0];
  const T* first = static_cast<const T*>(parts[0].in);
  std::vector<T> sum(first, first + count);
  for (size_t r = 1; r < parts.size(); ++r) {
    ReduceInto(sum.data(), static_cast<const T*>(parts[r].in), count, parts[r].op);
  }
  for (const Part& part : parts) {
    if (count != 0) std::memcpy(part.out, sum.data(), count * sizeof(T));
  }
}

void AllreduceOf(DataType type, const std::vector<Part>& parts) {
  switch (type) {
    case DataType::kFloat32:
      return Allreduce<float>(parts);
    case DataType::kFloat64:
      return Allreduce<double>(parts);
    case DataType::kInt8:
      return Allreduce<int8_t>(parts);
    case DataType::kInt16:
      return Allreduce<int16_t>(parts);
    case DataType::kInt32:
      return Allreduce<int32_t>(parts);
    case DataType::kInt64:
      return Allreduce<int64_t>(parts);
    case DataType::kUint16:
      return Allreduce<uint16_t>(parts);
    case DataType::kUint32:
      return Allreduce<uint32_t>(parts);
    case DataType::kUint64:
      return Allreduce<uint64_t>(parts);
    default:
      return Allreduce<uint8_t>(parts);
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
      broken = "rank " + std::to_string(r) + " called another collective than rank 0";
      return;
    }
  }
  switch (parts[0].kind) {
    case Collective::kAllreduce:
      return AllreduceOf(parts[0].type, parts);
    case Collective::kAllgather:
      return Allgather(parts);
    case Collective::kBroadcast:
      return Broadcast(parts);
    case Collective::kFinalize:
      return;
  }
}

// The last rank to arrive does the work for all, under the lock: nobody's buffer can go away
// meanwhile.
Status LocalGroup::Shared::Run(int rank, Part part, TimePoint deadline) {
  std::unique_lock<std::mutex> lock(mutex);
  if (!broken.empty()) return Status(Code::kUnavailable, broken);
  parts[rank] = std::move(part);
  const int64_t mine = generation;
  if (++arrived == size) {
    Execute();
    arrived = 0;
    ++generation;
    changed.notify_all();
  } else if (!changed.wait_until(lock, deadline,
                                 [&] { return generation != mine || !broken.empty(); })) {
    broken = "rank " + std::to_string(rank) + " gave up waiting in a collective";
    changed.notify_all();
    return Status(Code::kDeadlineExceeded, broken);
  }
  return broken.empty() ? Status() : Status(Code::kUnavailable, broken);
}

namespace {

class LocalTransport : public Transport {
 public:
  LocalTransport(std::shared_ptr<LocalGroup::Shared> shared, int rank)
      : shared_(std::move(shared)) {
    topology_ = {rank, shared_->size, rank, shared_->size, 1};
  }

  const Topology& topology() const override { return topology_; }
  std::string description() const override { return "local (threads of one process)"; }

  Status Send(int peer, const std::string& bytes) override {
    std::lock_guard<std::mutex> lock(shared_->mutex);
    if (!shared_->broken.empty()) return Status(Code::kUnavailable, shared_->broken);
    shared_->inboxes[peer].push_back({topology_.rank, bytes});
    return Status();
  }

  Status Receive(std::vector<ControlMessage>* inbox) override {
    std::lock_guard<std::mutex> lock(shared_->mutex);
    if (!shared_->broken.empty()) return Status(Code::kUnavailable, shared_->broken);
    auto& mine = shared_->inboxes[topology_.rank];
    std::move(mine.begin(), mine.end(), std::back_inserter(*inbox));
    mine.clear();
    return Status();
  }

  Status Allreduce(const void* in, void* out, size_t count, DataType type, ReduceOp op,
                   TimePoint deadline) override {
    return shared_->Run(topology_.rank, {Collective::kAllreduce, in, out, {count}, type, op, 0},
                        deadline);
  }

  Status Allgather(const void* in, void* out, const std::vector<size_t>& bytes,
                   TimePoint deadline) override {
    return shared_->Run(
        topology_.rank,
        {Collective::kAllgather, in, out, bytes, DataType::kUint8, ReduceOp::kSum, 0}, deadline);
  }

  Status Broadcast(void* data, size_t bytes, int root, TimePoint deadline) override {
    return shared_->Run(
        topology_.rank,
        {Collective::kBroadcast, data, data, {bytes}, DataType::kUint8, ReduceOp::kSum, root},
        deadline);
  }

  Status Finalize() override {
    return shared_->Run(
        topology_.rank,
        {Collective::kFinalize, nullptr, nullptr, {}, DataType::kUint8, ReduceOp::kSum, 0},
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
  shared_->changed.notify_all();
}

}  // namespace tfmpi
