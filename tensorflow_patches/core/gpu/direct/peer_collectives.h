// Reductions of ranks that share one GPU: each puts what it has where the others can read it, on
// the GPU, and each adds it all up. No byte leaves the GPU.
//
//   rank 0   put chunk n -> slot | ended? | ---------- | sum of all slots -> result
//   rank 1   put chunk n -> slot | ended? | all know it | sum of all slots -> result
//
// What is put has ended when the ranks tell each other so, through the transport, which carries
// their scales too. So no stream waits for another process: a rank that dies leaves nobody's GPU
// waiting. A rank has two slots, for chunks in turns. Its stream does one thing after another: that
// chunk n has been put means that the sum of chunk n - 1 has ended; and when all ranks have said
// so, the slot of chunk n - 1 is free for chunk n + 1.
//
// Communication thread only, which waits for the GPU once for each chunk. All reductions are given
// one stream.

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

  // Called by all ranks; `gpu` is the one that they share, of whose memory each takes two chunks.
  // Tries it: fails where a rank cannot read another's memory, on that rank or on all.
  static Status Make(Gpu* gpu, Transport* transport, size_t chunk_bytes, TimePoint deadline,
                     std::unique_ptr<DeviceCollectives>* made);
  ~PeerCollectives() override;

  std::string description() const override { return "memory that the ranks share on it"; }
  bool Takes(DataType type, ReduceOp op) const override;
  Status Allreduce(const void* in, void* out, size_t count, DataType type, ReduceOp op,
                   double scale, GpuStream stream, TimePoint deadline) override;
  Status Poll() override { return failure_; }
  // Nothing that was enqueued waits for another rank.
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
  // Whether all ranks are `well`; fails if one is not.
  Status Agree(const Status& well, TimePoint deadline);
  Status Reduce(const char* in, char* out, size_t count, DataType real, double scale,
                GpuStream stream, TimePoint deadline);
  Status AwaitPut(TimePoint deadline);

  size_t size() const { return static_cast<size_t>(transport_->topology().size); }
  size_t rank() const { return static_cast<size_t>(transport_->topology().rank); }

  Gpu* const gpu_;
  Transport* const transport_;
  const size_t chunk_bytes_;
  std::unique_ptr<GpuSum> sum_;
  GpuEvent put_ = nullptr;  // the last chunk is in its slot
  char* own_ = nullptr;     // this rank's slots
  std::vector<GpuHandle> handles_;
  std::vector<char*> slots_;  // all ranks', by rank; null: not open
  uint64_t chunks_ = 0;       // that were put
  bool closed_ = false;       // no other rank has own_ open
  Status failure_;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_GPU_DIRECT_PEER_COLLECTIVES_H_
