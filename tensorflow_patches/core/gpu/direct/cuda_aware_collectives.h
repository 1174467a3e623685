// Reductions of ranks whose MPI takes memory of GPUs (CUDA-aware MPI): it carries gradients from
// GPU to GPU, and each GPU adds up its share of them.
//
//   rank 0   own chunk -> | share 1 to rank 1, share 0 of all | sum of share 0 | share 0 to all |
//   rank 1   own chunk -> | share 0 to rank 0, share 1 of all | sum of share 1 | share 1 to all |
//
// then the chunk, whose every share is now a sum, goes to the result. So each element is added up
// on one rank, and all get the same bits.
//
// MPI is handed memory of ours, which each chunk is copied to and from: it need not be memory that
// other processes can reach, as TensorFlow's may not be, and it is the same one each time, which
// MPI need not make known to a network again. MPI knows no streams: before each exchange this waits
// for the GPU. There are two slots for chunks in turns; while one is on the wire, the other's sum
// runs.
//
// Communication thread only, which leads each chunk through. All reductions are given one stream.

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
  // Called by all ranks, each of whose transport has messages of GPUs. Takes four chunks of the
  // GPU's memory. Tries it: fails, on that rank or on all, where a result is wrong.
  static Status Make(Gpu* gpu, Transport* transport, size_t chunk_bytes, TimePoint deadline,
                     std::unique_ptr<DeviceCollectives>* made);
  ~CudaAwareCollectives() override;

  std::string description() const override { return "CUDA-aware " + transport_->description(); }
  bool Takes(DataType type, ReduceOp op) const override;
  Status Allreduce(const void* in, void* out, size_t count, DataType type, ReduceOp op,
                   double scale, GpuStream stream, TimePoint deadline) override;
  Status Poll() override { return failure_; }
  // What is enqueued on the GPU waits for no other rank.
  void Abort() override;
  Status NewBuffer(size_t bytes, void** memory) override { return gpu_->NewMemory(bytes, memory); }
  void DeleteBuffer(void* memory) override { gpu_->DeleteMemory(memory); }

 private:
  enum class Stage {
    kFree,
    kComing,   // the chunk is being copied to the slot
    kSharing,  // shares travel to who adds them up
    kAdding,
    kSpreading,  // sums travel to all
  };
  struct Slot {
    int number = 0;
    char* memory = nullptr;  // the chunk; then a share of each rank, this one's of the sum
    GpuEvent event = nullptr;
    Stage stage = Stage::kFree;
    char* out = nullptr;  // of the chunk that is in it
    size_t bytes = 0;
  };
  // Of the reduction that is under way.
  struct Terms {
    DataType type = DataType::kFloat32;
    std::vector<double> scales;  // by rank
    GpuStream stream = nullptr;
  };
  static constexpr size_t kSlots = 2;

  CudaAwareCollectives(Gpu* gpu, Transport* transport, size_t chunk_bytes);

  Status Prepare();
  Status Try(TimePoint deadline);
  // Of so many elements, with buffers that hold them.
  Status TryOne(float* values, void* memory, size_t count, GpuStream stream, TimePoint deadline);
  Status ReduceAll(const char* in, char* out, size_t bytes, const Terms& terms, TimePoint deadline);
  Status Put(Slot* slot, const char* in, char* out, size_t bytes, GpuStream stream);
  // Does what can be done without waiting; `moved` is set if that was anything.
  Status Advance(Slot* slot, const Terms& terms, bool* moved);
  Status Share(const Slot& slot);
  Status Add(const Slot& slot, const Terms& terms);
  Status Spread(const Slot& slot);
  Status Take(const Slot& slot, GpuStream stream);
  Status Late() const;

  // Of a chunk of so many bytes, share of a rank: where it begins and ends.
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
