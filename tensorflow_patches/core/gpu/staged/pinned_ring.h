// The slots of pinned memory through which chunks pass between GPUs and the transport.
//
// The communication thread's. Slots are used in turns; a slot's memory belongs to the copies of its
// last use until its events have happened.
//
// Where the ranks of a node share them, the slots' wire forms lie in buffers that all of the node
// read (NodeBuffers): a chunk's result is then copied to the GPU from where each rank has reduced
// its share. A slot is taken again when no other rank's copies read it any more, which is known
// without a word of its own:
//
//   rank 0   fetch n+1 n+2 | landed n-2? | chunk n: all are here | land n | fetch n+3 ...
//   rank 1   fetch n+1 n+2 | landed n-2? | chunk n: all are here | land n | fetch n+3 ...
//
// A rank takes part in the exchange of chunk n when its copies of chunk n-2 have landed. So who has
// been in that exchange knows that the slot of n-2 is free, which is that of n+3: of kSlots = 5,
// kAhead = 3 chunks are on their way from the GPU, and kBehind = 2 on their way back.

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
  static constexpr size_t kMaxStretches = 4096;  // of one chunk

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
    size_t before = 0;  // the slot that was taken kBehind turns ago
    size_t offset = 0;  // of `wire` in the buffer
    char* wire = nullptr;
    char* own = nullptr;
    float* scales = nullptr;
  };

  // Of slots for chunks of so many bytes on the wire, and a last padding.
  explicit PinnedRing(size_t chunk_bytes);
  ~PinnedRing();
  PinnedRing(const PinnedRing&) = delete;
  PinnedRing& operator=(const PinnedRing&) = delete;

  // Makes what is not there yet. `gpu` may be null, on a rank that has none: memory is the host's.
  Status Prepare(Gpu* gpu);
  // From now on the wire forms lie in `buffers`, of BufferBytes() each. Fails where memory or GPU
  // do not let it; Unshare then.
  Status Share(std::unique_ptr<NodeBuffers> buffers, Gpu* gpu);
  void Unshare();
  // Null: each rank has its own.
  NodeBuffers* shared() const { return shared_.get(); }
  size_t BufferBytes() const;
  Lane* LaneOf(const Gpu* gpu);
  const std::vector<std::unique_ptr<Lane>>& lanes() const { return lanes_; }
  // The next in turn.
  Slot Take();

 private:
  Status NewLane(Gpu* gpu);
  Status NewMemory();
  void DeleteMemory();
  // The part of a slot that is never shared, and all that is not.
  size_t OwnBytes() const;
  size_t SlotBytes() const;

  const size_t wire_bytes_;  // of a slot
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::unique_ptr<NodeBuffers> shared_;
  Gpu* registered_by_ = nullptr;  // whose shared_ is, too
  Gpu* pinned_by_ = nullptr;      // whose memory_ is; null: host_
  char* memory_ = nullptr;
  LineMemory host_;
  size_t next_ = 0;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_GPU_STAGED_PINNED_RING_H_
