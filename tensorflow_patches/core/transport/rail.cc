#include "tensorflow_patches/core/transport/rail.h"

#include <utility>
#include <vector>

namespace tfmpi {
namespace {

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
    if (reduction.type != DataType::kFloat32 || reduction.op != ReduceOp::kSum) {
      return between_->Allreduce(in, out, reduction, deadline);
    }
    narrow_.resize(reduction.count * SizeOf(wire_));
    // Scaled first, so that the sum over many ranks stays in the range of a float16.
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

}  // namespace

std::unique_ptr<Transport> MakeRail(std::unique_ptr<Transport> between, DataType wire) {
  if (between == nullptr || wire == DataType::kFloat32) return between;
  return std::make_unique<RoundingRail>(std::move(between), wire);
}

}  // namespace tfmpi
