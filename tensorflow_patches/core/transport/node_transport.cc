#include "tensorflow_patches/core/transport/node_transport.h"

#include <algorithm>
#include <utility>

#include "tensorflow_patches/core/base/sizes.h"
#include "tensorflow_patches/core/transport/control_channel.h"
#include "tensorflow_patches/core/transport/shm/node_buffers.h"

namespace tfmpi {
namespace {

// Messages from other nodes wake no rank. A waiting rank polls for them, at intervals that grow
// from the shortest to the longest.
constexpr std::chrono::microseconds kShortestPoll{20};
constexpr std::chrono::microseconds kLongestPoll{200};
constexpr int kPollsPerDoubling = 16;

// A rail (Transport::rail) that rounds to `wire` what may be rounded.
class RoundingRail : public Transport {
 public:
  RoundingRail(std::unique_ptr<Transport> between, DataType wire)
      : between_(std::move(between)), wire_(wire) {}

  const Topology& topology() const override { return between_->topology(); }
  std::string description() const override { return between_->description(); }
  Status Send(int peer, const std::string& bytes) override { return between_->Send(peer, bytes); }
  Status Receive(std::vector<ControlMessage>* inbox) override { return between_->Receive(inbox); }
  void Wait(Clock::duration limit, bool expecting, const std::function<bool()>& ready) override {
    between_->Wait(limit, expecting, ready);
  }
  void Wake() override { between_->Wake(); }

  Status Allreduce(const void* in, void* out, const Reduction& reduction,
                   TimePoint deadline) override {
    if (!reduction.rounds) return between_->Allreduce(in, out, reduction, deadline);
    narrow_.resize(reduction.count * SizeOf(wire_));
    // Unpack narrows float32 to `wire_`, Pack widens it again. Scales before the sum, so that it
    // stays in the range of a float16.
    Unpack(wire_, in, narrow_.data(), reduction.count, reduction.scale);
    const Status status = between_->Allreduce(
        narrow_.data(), narrow_.data(), {reduction.count, wire_, ReduceOp::kSum, 1}, deadline);
    if (status.ok()) Pack(wire_, narrow_.data(), out, reduction.count, 1);
    return status;
  }

  Status Allgather(const void* in, void* out, const std::vector<size_t>& bytes,
                   TimePoint deadline) override {
    return between_->Allgather(in, out, bytes, deadline);
  }
  Status Broadcast(void* data, size_t bytes, int root, TimePoint deadline) override {
    return between_->Broadcast(data, bytes, root, deadline);
  }
  Status Finalize() override { return between_->Finalize(); }

 private:
  const std::unique_ptr<Transport> between_;
  const DataType wire_;
  std::vector<char> narrow_;
};

std::unique_ptr<Transport> MakeRail(std::unique_ptr<Transport> between, DataType wire) {
  if (between == nullptr || wire == DataType::kFloat32) return between;
  return std::make_unique<RoundingRail>(std::move(between), wire);
}

class NodeTransport : public Transport {
 public:
  NodeTransport(std::unique_ptr<Transport> all, std::unique_ptr<Transport> rail,
                const NodeMemory& memory, const std::vector<int>& node_ranks,
                const std::vector<int>& leaders, const NodeOptions& options)
      : all_(std::move(all)),
        rail_(MakeRail(std::move(rail), options.wire)),
        memory_(memory),
        options_(options),
        node_(memory, options.stores, options.has_failed_rank),
        topology_(WithNodeLeader(all_->topology(), node_ranks[0])),
        one_node_(memory.ranks() == topology_.size),
        links_(leaders.empty() ? MakeStar(topology_.rank, topology_.size)
                               : MakeTree(topology_.rank, leaders)) {
    // The node's first rank exchanges messages with the other ranks of the node, through their
    // rings, if it forwards messages or is rank 0.
    if (node_ranks[0] != 0 && !links_.tree) return;
    for (int r = 1; r < memory_.ranks(); ++r) {
      RankState& state = memory_.state(r);
      if (memory_.rank() == 0) {
        peers_.push_back({node_ranks[r], r, {&state.from_leader, &state.to_leader}});
      } else if (memory_.rank() == r) {
        peers_.push_back({node_ranks[0], 0, {&state.to_leader, &state.from_leader}});
      }
    }
  }

  const Topology& topology() const override { return topology_; }
  std::string description() const override { return all_->description(); }

  Status Send(int peer, const std::string& bytes) override {
    for (Peer& neighbor : peers_) {
      if (neighbor.rank != peer) continue;
      neighbor.channel.Send(bytes);
      memory_.Notify(neighbor.local_rank);
      return Status();
    }
    return all_->Send(peer, bytes);
  }

  Status Receive(std::vector<ControlMessage>* inbox) override {
    for (Peer& neighbor : peers_) {
      bool notify = neighbor.channel.Flush();
      ControlMessage message{neighbor.rank, ""};
      while (neighbor.channel.Receive(&message.bytes, &notify)) inbox->push_back(message);
      if (notify) memory_.Notify(neighbor.local_rank);
    }
    if (one_node_) return Status();
    const size_t before = inbox->size();
    const Status status = all_->Receive(inbox);
    if (inbox->size() != before) polls_ = 0;
    return status;
  }

  ControlLinks links() const override { return links_; }

  // The messages of a node's first rank may not fit into the rings at once. Other ranks must not
  // wait here: the first rank reads nothing while it waits, so both would wait forever.
  Status Flush(TimePoint deadline) override {
    if (memory_.rank() != 0) return Status();
    for (Peer& neighbor : peers_) {
      SpinWait wait(memory_, SleepState::kBetween, Clock::duration::zero());
      while (neighbor.channel.Blocked()) {
        if (neighbor.channel.Flush()) {
          memory_.Notify(neighbor.local_rank);
          wait.Reset();
        } else if (Clock::now() >= deadline) {
          return Status(Code::kDeadlineExceeded, "rank " + std::to_string(neighbor.rank) +
                                                     " hangs or has died: it does not read the "
                                                     "messages of rank " +
                                                     std::to_string(topology_.rank));
        } else if (options_.has_failed_rank && options_.has_failed_rank()) {
          return Status(Code::kUnavailable, "a rank has died");
        } else {
          wait.Pause(kLongestPoll);
        }
      }
    }
    return Status();
  }

  void Wait(Clock::duration limit, bool expecting, const std::function<bool()>& ready) override {
    if (!one_node_ && expecting) {
      const int doublings = std::min(polls_++ / kPollsPerDoubling, 10);
      limit = std::min<Clock::duration>(
          limit, std::min<Clock::duration>(kShortestPoll * (1 << doublings), kLongestPoll));
    }
    SpinWait wait(memory_, SleepState::kBetween, Clock::duration::zero());
    wait.Pause(limit);  // announces that it will sleep
    if (ready() || Readable()) return;
    // A reader that makes room in a ring notifies this rank only if it finds the ring full.
    if (Blocked()) limit = std::min<Clock::duration>(limit, kLongestPoll);
    wait.Pause(limit);  // sleeps
  }

  bool MayPoll() const override { return one_node_ && !memory_.crowded(); }

  void Wake() override { memory_.Wake(); }

  std::atomic<uint64_t>* SharedWord() override {
    return one_node_ ? &memory_.state(0).word : nullptr;
  }
  std::atomic<int64_t>* SharedNumbers(int rank) override {
    return one_node_ ? memory_.state(rank).numbers : nullptr;
  }
  void WakePeers() override { memory_.NotifyPeers(SleepState::kBetween); }

  Status Allreduce(const void* in, void* out, const Reduction& reduction,
                   TimePoint deadline) override {
    if (one_node_) return node_.Allreduce(in, out, reduction, deadline);
    if (rail_ == nullptr) return all_->Allreduce(in, out, reduction, deadline);
    if (memory_.ranks() == 1 && options_.wire == DataType::kFloat32) {
      return rail_->Allreduce(in, out, reduction, deadline);
    }
    // In stages, which also limit RoundingRail's buffer.
    const size_t element = SizeOf(reduction.type);
    for (size_t start = 0; start < reduction.count; start += kStageBytes / element) {
      Reduction stage = reduction;
      stage.count = std::min(kStageBytes / element, reduction.count - start);
      TFMPI_RETURN_IF_NOT_OK(AllreduceStage(static_cast<const char*>(in) + start * element,
                                            static_cast<char*>(out) + start * element, stage,
                                            deadline));
    }
    return Status();
  }

  Status PlainAllreduce(const void* in, void* out, const Reduction& reduction,
                        TimePoint deadline) override {
    return all_->PlainAllreduce(in, out, reduction, deadline);
  }

  Status Allgather(const void* in, void* out, const std::vector<size_t>& bytes,
                   TimePoint deadline) override {
    if (one_node_) return node_.Allgather(in, out, bytes, deadline);
    return all_->Allgather(in, out, bytes, deadline);
  }

  Status SparseAllgather(const std::vector<int64_t>& rows, size_t row_bytes, RowAccess* access,
                         TimePoint deadline) override {
    if (!one_node_ || row_bytes > memory_.slot_bytes()) {
      return Transport::SparseAllgather(rows, row_bytes, access, deadline);
    }
    return node_.SparseAllgather(rows, row_bytes, access, deadline);
  }

  Status Broadcast(void* data, size_t bytes, int root, TimePoint deadline) override {
    if (one_node_) return node_.Broadcast(data, bytes, root, deadline);
    return all_->Broadcast(data, bytes, root, deadline);
  }

  Status MakeNodeBuffers(size_t bytes, TimePoint deadline, std::unique_ptr<NodeBuffers>* made,
                         std::string* why) override {
    if (memory_.ranks() == 1 || (!one_node_ && rail_ == nullptr)) return Status();
    NodeBuffers::Options options;
    options.bytes = bytes;
    options.map = options_.map_buffers;
    if (!one_node_) {
      options.between = [this](char* data, const Reduction& reduction, TimePoint by) {
        return rail_->Allreduce(data, data, reduction, by);
      };
    }
    return NodeBuffers::Make(&node_, options, deadline, made, why);
  }

  // Not through the node's shared memory, which cannot contain GPU memory.
  GpuMessages* gpu_messages() override { return all_->gpu_messages(); }

  Transport* rail() override { return rail_.get(); }
  Membership* membership() override { return all_->membership(); }

  Status Finalize() override {
    const Status status = Flush(Clock::now() + std::chrono::seconds(30));
    return status.ok() ? all_->Finalize() : status;
  }

 private:
  // A rank of this node with which this rank exchanges control messages.
  struct Peer {
    int rank;
    int local_rank;
    ControlChannel channel;
  };

  static Topology WithNodeLeader(Topology topology, int first) {
    topology.node_leader = first;
    return topology;
  }

  bool Readable() const {
    return std::any_of(peers_.begin(), peers_.end(),
                       [](const Peer& neighbor) { return neighbor.channel.Readable(); });
  }
  bool Blocked() const {
    return std::any_of(peers_.begin(), peers_.end(),
                       [](const Peer& neighbor) { return neighbor.channel.Blocked(); });
  }

  Status AllreduceStage(const char* in, char* out, const Reduction& reduction, TimePoint deadline) {
    Reduction inside = reduction;
    inside.scale = 1;
    TFMPI_RETURN_IF_NOT_OK(node_.ReduceScatter(in, out, inside, deadline));
    const size_t start = node_.ShareStart(reduction.count, memory_.rank());
    Reduction between = reduction;
    between.count = node_.ShareStart(reduction.count, memory_.rank() + 1) - start;
    char* const share = out + start * SizeOf(reduction.type);
    TFMPI_RETURN_IF_NOT_OK(rail_->Allreduce(share, share, between, deadline));
    return node_.AllgatherShares(out, reduction.count, reduction.type, deadline);
  }

  const std::unique_ptr<Transport> all_;   // between all ranks, without shared memory
  const std::unique_ptr<Transport> rail_;  // see Transport::rail; may be null
  const NodeMemory memory_;
  const NodeOptions options_;
  NodeCollectives node_;
  const Topology topology_;
  const bool one_node_;
  const ControlLinks links_;
  std::vector<Peer> peers_;
  int polls_ = 0;  // calls of Wait that expect a message, since the last one from another node
};

}  // namespace

std::unique_ptr<Transport> MakeNodeTransport(std::unique_ptr<Transport> all,
                                             std::unique_ptr<Transport> rail,
                                             const NodeMemory& memory,
                                             const std::vector<int>& node_ranks,
                                             const std::vector<int>& leaders,
                                             const NodeOptions& options) {
  return std::make_unique<NodeTransport>(std::move(all), std::move(rail), memory, node_ranks,
                                         leaders, options);
}

}  // namespace tfmpi
