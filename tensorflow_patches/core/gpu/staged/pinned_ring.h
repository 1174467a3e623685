// The slots of pinned memory through which chunks pass between GPUs and the transport.
//
// Communication thread only. Slots are used in turn; a slot's memory is in use by the copies of its
// last chunk until their events have occurred.
//
// If the ranks of a node share their slots, the wire forms are in buffers that the whole node can
// read (NodeBuffers): a chunk's result is then copied to the GPU from where each rank has reduced
// its share. A slot is reused when no other rank's copies read it any more, which is known without
// extra messages:
//
//   rank 0   fetch n+1 n+2 | landed n-2? | chunk n: all are here | land n | fetch n+3 ...
//   rank 1   fetch n+1 n+2 | landed n-2? | chunk n: all are here | land n | fetch n+3 ...
//
// A rank takes part in the exchange of chunk n after its copies of chunk n-2 have landed. So after
// that exchange every rank knows that the slots of n-2 are free, and uses them for n+3: of kSlots =
// 5, kAhead = 3 chunks are on the way from the GPU and kBehind = 2 on the way back.

#ifndef TFMPI_CORE_GPU_STAGED_PINNED_RING_H_
#define TFMPI_CORE_GPU_STAGED_PINNED_RING_H_

#include <array>
#include <memory>
#include <vector>

#include "tensorflow_patches/core/base/sizes.h"
#include "tensorflow_patches/core/device/gpu.h"
#include "tensorflow_patches/core/memory/line_memory.h"
#include "tensorflow_patches/core/transport/shm/node_buffers.h"

namespace tfmpi {

class PinnedRing {
 public:
  static constexpr size_t kAhead = 3;
  static constexpr size_t kBehind = 2;
  static constexpr size_t kSlots = kAhead + kBehind;
  static constexpr size_t kMaxStretches = 4096;  // per chunk

  // What this ring owns on one GPU.
  struct Lane {
    explicit Lane(Gpu* on) : gpu(on) {}
    ~Lane();

    Gpu* const gpu;
    GpuStream fetching = nullptr;  // to the host
    GpuStream landing = nullptr;   // from it
    GpuEvent done = nullptr;       // for submitters' streams
    std::array<GpuEvent, kSlots> fetched{};
    std::array<GpuEvent, kSlots> landed{};
  };

  struct Slot {
    size_t number = 0;
    size_t before = 0;        // the slot taken kBehind turns ago
    size_t offset = 0;        // of `wire` in the rank's node buffer
    char* wire = nullptr;     // the wire form
    char* own = nullptr;      // the GPU's form, for types where that differs
    float* scales = nullptr;  // read from the GPU
  };

  // The slots are for chunks of this size on the wire, plus padding.
  explicit PinnedRing(size_t chunk_bytes);
  ~PinnedRing();
  PinnedRing(const PinnedRing&) = delete;
  PinnedRing& operator=(const PinnedRing&) = delete;

  // Creates what does not exist yet. Without a GPU (null), the slots are in ordinary memory.
  Status Prepare(Gpu* gpu);
  // From now on the wire forms are in `buffers`, of BufferBytes() each. If it fails, because there
  // is no memory or the GPU cannot register them, call Unshare.
  Status Share(std::unique_ptr<NodeBuffers> buffers, Gpu* gpu);
  void Unshare();
  // Null: each rank has its own slots.
  NodeBuffers* shared() const { return shared_.get(); }
  size_t BufferBytes() const;
  Lane* LaneOf(const Gpu* gpu);
  const std::vector<std::unique_ptr<Lane>>& lanes() const { return lanes_; }
  Slot Take();

 private:
  Status NewLane(Gpu* gpu);
  Status NewMemory();
  void DeleteMemory();
  // The size of a slot's GPU form and scales, which are never shared.
  size_t OwnBytes() const;
  // The size of a slot in memory_: with the wire form, unless that is in shared_.
  size_t SlotBytes() const;

  const size_t wire_bytes_;  // of a slot
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::unique_ptr<NodeBuffers> shared_;
  Gpu* registered_by_ = nullptr;  // the GPU that has registered shared_
  Gpu* pinned_by_ = nullptr;      // the GPU that owns memory_; null: host_
  char* memory_ = nullptr;        // all slots
  LineMemory host_;
  size_t next_ = 0;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_GPU_STAGED_PINNED_RING_H_
