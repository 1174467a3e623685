// A transport whose group can be replaced by that of the survivors when ranks have died.
//
// Communication thread, except for the calls that Transport allows on any thread: these may see the
// group before or after a change. Former transports live as long as this one, since their topology
// may still be in use. Has no shared word, so the engine agrees by messages, and no functions for
// GPUs, which TF_MPI_FAULT=shrink does not support.

#ifndef TFMPI_CORE_RECOVERY_SWITCHABLE_TRANSPORT_H_
#define TFMPI_CORE_RECOVERY_SWITCHABLE_TRANSPORT_H_

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow_patches/core/transport/membership.h"
#include "tensorflow_patches/core/transport/transport.h"

namespace tfmpi {

class SwitchableTransport : public Transport {
 public:
  explicit SwitchableTransport(std::unique_ptr<Transport> first) { SwitchTo(std::move(first)); }

  void SwitchTo(std::unique_ptr<Transport> next) {
    Transport* const raw = next.get();
    Keep(std::move(next));
    current_.store(raw, std::memory_order_release);
    raw->Wake();  // another thread may just have called Wake of the former transport
  }
  // Keeps a transport that will not be used, because its group has failed or the engine ends.
  void Keep(std::unique_ptr<Transport> transport) { all_.push_back(std::move(transport)); }

  const Topology& topology() const override { return current()->topology(); }
  std::string description() const override { return current()->description(); }
  Status Send(int peer, const std::string& bytes) override { return current()->Send(peer, bytes); }
  Status Receive(std::vector<ControlMessage>* inbox) override { return current()->Receive(inbox); }
  ControlLinks links() const override { return current()->links(); }
  Status Flush(TimePoint deadline) override { return current()->Flush(deadline); }
  void Wait(Clock::duration limit, bool expecting, const std::function<bool()>& ready) override {
    current()->Wait(limit, expecting, ready);
  }
  bool MayPoll() const override { return current()->MayPoll(); }
  void Wake() override { current()->Wake(); }
  void WakePeers() override { current()->WakePeers(); }
  Status Allreduce(const void* in, void* out, const Reduction& reduction,
                   TimePoint deadline) override {
    return current()->Allreduce(in, out, reduction, deadline);
  }
  Status PlainAllreduce(const void* in, void* out, const Reduction& reduction,
                        TimePoint deadline) override {
    return current()->PlainAllreduce(in, out, reduction, deadline);
  }
  Status Allgather(const void* in, void* out, const std::vector<size_t>& bytes,
                   TimePoint deadline) override {
    return current()->Allgather(in, out, bytes, deadline);
  }
  Status SparseAllgather(const std::vector<int64_t>& rows, size_t row_bytes, RowAccess* access,
                         TimePoint deadline) override {
    return current()->SparseAllgather(rows, row_bytes, access, deadline);
  }
  Status Broadcast(void* data, size_t bytes, int root, TimePoint deadline) override {
    return current()->Broadcast(data, bytes, root, deadline);
  }
  Membership* membership() override { return current()->membership(); }
  Status Finalize() override { return current()->Finalize(); }

 private:
  Transport* current() const { return current_.load(std::memory_order_acquire); }

  std::atomic<Transport*> current_{nullptr};
  std::vector<std::unique_ptr<Transport>> all_;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_RECOVERY_SWITCHABLE_TRANSPORT_H_
