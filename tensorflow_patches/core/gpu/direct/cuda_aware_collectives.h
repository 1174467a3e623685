// Reductions by an MPI that supports GPU memory (CUDA-aware MPI): it sends gradients from GPU to
// GPU, and each GPU sums its share of them.
//
//   rank 0   copy own chunk in | send share 1, receive share 0 | sum share 0 | send the sum to all
//   rank 1   copy own chunk in | send share 0, receive share 1 | sum share 1 | send the sum to all
//
// Then the sums of all shares are copied to the result. Each element is summed on one rank, so all
// ranks get the same bits.
//
// Chunks are copied to and from memory of our own, and MPI gets only that: TensorFlow's memory may
// not be accessible to other processes, and MPI registers ours with the network only once. MPI does
// not know about streams, so an exchange starts only when the GPU's work on its data has ended.
// Two slots are used alternately: while the chunk in one is on the wire, the other is summed.
//
// Communication thread only; it drives each chunk through these steps. All reductions must use the
// same stream.

#ifndef TFMPI_CORE_GPU_DIRECT_CUDA_AWARE_COLLECTIVES_H_
#define TFMPI_CORE_GPU_DIRECT_CUDA_AWARE_COLLECTIVES_H_

#include <memory>
#include <string>
#include <vector>

#include "tensorflow_patches/core/device/collectives.h"
#include "tensorflow_patches/core/device/gpu.h"
#include "tensorflow_patches/core/transport/transport.h"

namespace tfmpi {

class CudaAwareCollectives : public DeviceCollectives {
 public:
  // Called by all ranks; their transports must support GPU messages. Uses four chunks of GPU
  // memory. Runs a test reduction, and fails on all ranks if the result is wrong on any.
  static Status Make(Gpu* gpu, Transport* transport, size_t chunk_bytes, TimePoint deadline,
                     std::unique_ptr<DeviceCollectives>* made);
  ~CudaAwareCollectives() override;

  std::string description() const override { return "CUDA-aware " + transport_->description(); }
  bool Takes(DataType type, ReduceOp op) const override;
  Status Allreduce(const void* in, void* out, size_t count, DataType type, ReduceOp op,
                   double scale, GpuStream stream, TimePoint deadline) override;
  Status Poll() override { return failure_; }
  // Only ends the use of this object: nothing that is enqueued waits for another rank.
  void Abort() override;
  Status NewBuffer(size_t bytes, void** memory) override { return gpu_->NewMemory(bytes, memory); }
  void DeleteBuffer(void* memory) override { gpu_->DeleteMemory(memory); }

 private:
  enum class Stage {
    kFree,
    kComing,     // the chunk is being copied to the slot
    kSharing,    // shares are being sent to the ranks that sum them
    kAdding,     // this rank's share is being summed
    kSpreading,  // the sums are being sent to all ranks
  };
  struct Slot {
    int number = 0;  // its two exchanges use lanes 2 * number and 2 * number + 1 of messages_
    // The chunk, in which the other shares are overwritten by their sums (kSpreading). After it,
    // one place per rank: this rank's share as that rank has sent it, or, for this rank, the sum.
    char* memory = nullptr;
    GpuEvent event = nullptr;
    Stage stage = Stage::kFree;
    char* out = nullptr;  // where the sums go
    size_t bytes = 0;
  };
  // What all chunks of a reduction have in common.
  struct Terms {
    DataType type = DataType::kFloat32;
    std::vector<double> scales;  // by rank
    GpuStream stream = nullptr;
  };
  static constexpr size_t kSlots = 2;

  CudaAwareCollectives(Gpu* gpu, Transport* transport, size_t chunk_bytes);

  Status Prepare();
  Status Try(TimePoint deadline);
  // A test reduction of `count` elements, with buffers of that size.
  Status TryOne(float* values, void* memory, size_t count, GpuStream stream, TimePoint deadline);
  Status ReduceAll(const char* in, char* out, size_t bytes, const Terms& terms, TimePoint deadline);
  Status Put(Slot* slot, const char* in, char* out, size_t bytes, GpuStream stream);
  // Moves the slot to its next stage, and sets `moved`, if that needs no wait.
  Status Advance(Slot* slot, const Terms& terms, bool* moved);
  Status Share(const Slot& slot);
  Status Add(const Slot& slot, const Terms& terms);
  Status Spread(const Slot& slot);
  Status CopyOut(const Slot& slot, GpuStream stream);
  Status Late() const;

  // The offset of a rank's share in a chunk of `bytes` bytes.
  size_t Begin(size_t bytes, size_t rank) const;
  size_t Length(size_t bytes, size_t rank) const {
    return Begin(bytes, rank + 1) - Begin(bytes, rank);
  }
  char* Received(const Slot& slot, size_t rank) const;
  size_t size() const { return static_cast<size_t>(transport_->topology().size); }
  size_t rank() const { return static_cast<size_t>(transport_->topology().rank); }

  Gpu* const gpu_;
  Transport* const transport_;
  GpuMessages* const messages_;
  const size_t chunk_bytes_;
  std::unique_ptr<GpuSum> sum_;
  Slot slots_[kSlots];
  Status failure_;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_GPU_DIRECT_CUDA_AWARE_COLLECTIVES_H_
