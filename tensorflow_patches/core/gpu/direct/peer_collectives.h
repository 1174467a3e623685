// Reductions of ranks that share one GPU: each rank puts its data where the others can read it on
// the GPU, and each one sums all of it. No byte leaves the GPU.
//
//   rank 0   put chunk n -> slot | ended? | exchange scales | sum of all slots -> result
//   rank 1   put chunk n -> slot | ended? | exchange scales | sum of all slots -> result
//
// A rank sends its scale, through the transport, once its put has ended, so the exchange shows that
// all puts have ended. No stream waits for another process: a rank that dies leaves no GPU waiting.
// A rank has two slots, used alternately. Its stream runs in order: if chunk n has been put, the
// sum of chunk n-1 has ended. So after the exchange for chunk n, the slots of chunk n-1 are free
// for chunk n+1.
//
// Communication thread only; it waits for the GPU once per chunk. All reductions must use the same
// stream.

#ifndef TFMPI_CORE_GPU_DIRECT_PEER_COLLECTIVES_H_
#define TFMPI_CORE_GPU_DIRECT_PEER_COLLECTIVES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tensorflow_patches/core/device/collectives.h"
#include "tensorflow_patches/core/device/gpu.h"
#include "tensorflow_patches/core/transport/transport.h"

namespace tfmpi {

class PeerCollectives : public DeviceCollectives {
 public:
  static constexpr size_t kSlots = 2;

  // Called by all ranks, which share `gpu`; each uses two chunks of its memory. Runs a test
  // reduction. Fails on all ranks if one cannot read another one's memory.
  static Status Make(Gpu* gpu, Transport* transport, size_t chunk_bytes, TimePoint deadline,
                     std::unique_ptr<DeviceCollectives>* made);
  ~PeerCollectives() override;

  std::string description() const override { return "one GPU that all ranks share"; }
  bool Takes(DataType type, ReduceOp op) const override;
  Status Allreduce(const void* in, void* out, size_t count, DataType type, ReduceOp op,
                   double scale, GpuStream stream, TimePoint deadline) override;
  Status Poll() override { return failure_; }
  // Only ends the use of this object: nothing that is enqueued waits for another rank.
  void Abort() override;
  void Close() override;
  void Closed() override { closed_ = true; }
  Status NewBuffer(size_t bytes, void** memory) override { return gpu_->NewMemory(bytes, memory); }
  void DeleteBuffer(void* memory) override { gpu_->DeleteMemory(memory); }

 private:
  PeerCollectives(Gpu* gpu, Transport* transport, size_t chunk_bytes)
      : gpu_(gpu), transport_(transport), chunk_bytes_(chunk_bytes) {}

  Status Share(TimePoint deadline);
  Status Open(const std::vector<GpuHandle>& handles);
  Status Try(TimePoint deadline);
  // Fails on all ranks if `own` is not ok on one.
  Status Agree(const Status& own, TimePoint deadline);
  // One chunk: `count` elements of `real`; a complex number is two of them.
  Status Reduce(const char* in, char* out, size_t count, DataType real, double scale,
                GpuStream stream, TimePoint deadline);
  Status AwaitPut(TimePoint deadline);

  size_t size() const { return static_cast<size_t>(transport_->topology().size); }
  size_t rank() const { return static_cast<size_t>(transport_->topology().rank); }

  Gpu* const gpu_;
  Transport* const transport_;
  const size_t chunk_bytes_;
  std::unique_ptr<GpuSum> sum_;
  GpuEvent put_ = nullptr;  // this rank's last chunk is in its slot
  char* own_ = nullptr;     // this rank's slots
  std::vector<GpuHandle> handles_;
  std::vector<char*> slots_;  // of all ranks, by rank; null: not open
  uint64_t chunks_ = 0;       // put so far
  bool closed_ = false;       // no other rank has own_ open any more
  Status failure_;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_GPU_DIRECT_PEER_COLLECTIVES_H_
