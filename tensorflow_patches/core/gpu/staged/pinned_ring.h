// The slots of pinned memory through which chunks pass between GPUs and the transport.
//
// The communication thread's. Slots are used in turns; a slot's memory belongs to the copies of its
// last use until its events have happened.

#ifndef TFMPI_CORE_GPU_STAGED_PINNED_RING_H_
#define TFMPI_CORE_GPU_STAGED_PINNED_RING_H_

#include <array>
#include <memory>
#include <vector>

#include "tensorflow_patches/core/base/sizes.h"
#include "tensorflow_patches/core/device/gpu.h"
#include "tensorflow_patches/core/memory/line_memory.h"

namespace tfmpi {

class PinnedRing {
 public:
  static constexpr size_t kSlots = 3;
  static constexpr size_t kChunkBytes = kGpuChunkBytes;
  static constexpr size_t kMostStretches = 4096;  // of one chunk

  // What is this ring's on one GPU.
  struct Lane {
    Gpu* gpu = nullptr;
    GpuStream fetching = nullptr;  // to the host
    GpuStream landing = nullptr;   // from it
    GpuEvent done = nullptr;       // for submitters' streams
    std::array<GpuEvent, kSlots> fetched{};
    std::array<GpuEvent, kSlots> landed{};
  };

  // In wire form; as the GPU has it, for types whose wire form is another; scales that lie there.
  struct Slot {
    size_t number = 0;
    char* wire = nullptr;
    char* own = nullptr;
    float* scales = nullptr;
  };

  PinnedRing() = default;
  ~PinnedRing();
  PinnedRing(const PinnedRing&) = delete;
  PinnedRing& operator=(const PinnedRing&) = delete;

  // Makes what is not there yet. `gpu` may be null, on a rank that has none: memory is the host's.
  Status Prepare(Gpu* gpu);
  Lane* LaneOf(const Gpu* gpu);
  const std::vector<std::unique_ptr<Lane>>& lanes() const { return lanes_; }
  // The next in turn.
  Slot Take();

 private:
  Status NewLane(Gpu* gpu);
  Status NewMemory();
  void DeleteMemory();

  std::vector<std::unique_ptr<Lane>> lanes_;
  Gpu* pinned_by_ = nullptr;  // whose memory_ is; null: host_
  char* memory_ = nullptr;
  LineMemory host_;
  size_t next_ = 0;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_GPU_STAGED_PINNED_RING_H_
