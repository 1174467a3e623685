#include "tensorflow_patches/core/transport/plugin_transport.h"

#include <dlfcn.h>

#include <algorithm>

#include "tensorflow_patches/core/transport/plugin.h"

namespace tfmpi {
namespace {

Status ToStatus(int result, const char* error) {
  switch (result) {
    case kTfMpiOk:
      return Status();
    case kTfMpiTimeout:
      return Status(Code::kDeadlineExceeded, error);
    default:
      return Status(Code::kUnavailable, error);
  }
}

double SecondsUntil(TimePoint deadline) {
  return std::max(0.0, std::chrono::duration<double>(deadline - Clock::now()).count());
}

class PluginTransport : public Transport {
 public:
  PluginTransport(const TfMpiTransport* plugin, const TfMpiTransportInfo& info)
      : plugin_(plugin), library_(info.library) {
    topology_ = {info.rank, info.size, info.local_rank, info.local_size, info.nodes};
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
      ControlMessage message{source, std::string(bytes, '\0')};
      result = plugin_->receive(message.bytes.data(), bytes, error_);
      if (result != kTfMpiOk) return ToStatus(result, error_);
      inbox->push_back(std::move(message));
    }
  }

  Status Allreduce(const void* in, void* out, size_t count, DataType type, ReduceOp op,
                   TimePoint deadline) override {
    return ToStatus(plugin_->allreduce(in, out, count, static_cast<int32_t>(type),
                                       static_cast<int32_t>(op), SecondsUntil(deadline), error_),
                    error_);
  }

  Status Allgather(const void* in, void* out, const std::vector<size_t>& bytes,
                   TimePoint deadline) override {
    return ToStatus(plugin_->allgather(in, out, bytes.data(), SecondsUntil(deadline), error_),
                    error_);
  }

  Status Broadcast(void* data, size_t bytes, int root, TimePoint deadline) override {
    return ToStatus(plugin_->broadcast(data, bytes, root, SecondsUntil(deadline), error_), error_);
  }

  Status Finalize() override { return ToStatus(plugin_->finalize(error_), error_); }

 private:
  const TfMpiTransport* plugin_;
  std::string library_;
  Topology topology_;
  char error_[TFMPI_ERROR_BYTES] = {};  // communication thread only, as all callers of plugin_
};

}  // namespace

Status LoadPluginTransport(const std::string& path, std::unique_ptr<Transport>* transport) {
  // RTLD_GLOBAL: Open MPI's own plugins look its symbols up in the global scope.
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (handle == nullptr) return Status(Code::kUnavailable, dlerror());
  using Getter = const TfMpiTransport* (*)();
  auto getter = reinterpret_cast<Getter>(dlsym(handle, "tfmpi_transport_get"));
  if (getter == nullptr) {
    return Status(Code::kInternal, path + " exports no tfmpi_transport_get");
  }
  const TfMpiTransport* plugin = getter();
  if (plugin->abi != TFMPI_TRANSPORT_ABI) {
    return Status(Code::kInternal, path + " was built for transport ABI " +
                                       std::to_string(plugin->abi) + ", this library needs " +
                                       std::to_string(TFMPI_TRANSPORT_ABI));
  }
  TfMpiTransportInfo info = {};
  char error[TFMPI_ERROR_BYTES] = {};
  Status status = ToStatus(plugin->init(&info, error), error);
  if (status.ok()) *transport = std::make_unique<PluginTransport>(plugin, info);
  return status;
}

}  // namespace tfmpi
