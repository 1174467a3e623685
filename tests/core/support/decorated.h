// A transport for tests that forwards most calls to another one.

#ifndef TFMPI_TESTS_CORE_SUPPORT_DECORATED_H_
#define TFMPI_TESTS_CORE_SUPPORT_DECORATED_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow_patches/core/transport/transport.h"

namespace tfmpi {

// Forwards most calls; override those that differ. SparseAllgather becomes an Allgather, and the
// decorated transport has no gpu_messages or membership.
class Decorated : public Transport {
 public:
  explicit Decorated(std::unique_ptr<Transport> next) : next_(std::move(next)) {}

  const Topology& topology() const override { return next_->topology(); }
  std::string description() const override { return next_->description(); }
  Status Send(int peer, const std::string& bytes) override { return next_->Send(peer, bytes); }
  Status Receive(std::vector<ControlMessage>* inbox) override { return next_->Receive(inbox); }
  ControlLinks links() const override { return next_->links(); }
  Status Flush(TimePoint deadline) override { return next_->Flush(deadline); }
  void Wait(Clock::duration limit, bool expecting, const std::function<bool()>& ready) override {
    next_->Wait(limit, expecting, ready);
  }
  bool MayPoll() const override { return next_->MayPoll(); }
  void Wake() override { next_->Wake(); }
  std::atomic<uint64_t>* SharedWord() override { return next_->SharedWord(); }
  std::atomic<int64_t>* SharedNumbers(int rank) override { return next_->SharedNumbers(rank); }
  void WakePeers() override { next_->WakePeers(); }
  Status Allreduce(const void* in, void* out, const Reduction& reduction,
                   TimePoint deadline) override {
    return next_->Allreduce(in, out, reduction, deadline);
  }
  Status Allgather(const void* in, void* out, const std::vector<size_t>& bytes,
                   TimePoint deadline) override {
    return next_->Allgather(in, out, bytes, deadline);
  }
  Status Broadcast(void* data, size_t bytes, int root, TimePoint deadline) override {
    return next_->Broadcast(data, bytes, root, deadline);
  }
  Status MakeNodeBuffers(size_t bytes, TimePoint deadline, std::unique_ptr<NodeBuffers>* made,
                         std::string* why) override {
    return next_->MakeNodeBuffers(bytes, deadline, made, why);
  }
  Transport* rail() override { return next_->rail(); }
  Status Finalize() override { return next_->Finalize(); }

 protected:
  const std::unique_ptr<Transport> next_;
};

}  // namespace tfmpi

#endif  // TFMPI_TESTS_CORE_SUPPORT_DECORATED_H_
