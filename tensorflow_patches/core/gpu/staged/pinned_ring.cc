#include "tensorflow_patches/core/gpu/staged/pinned_ring.h"

#include <utility>

namespace tfmpi {
namespace {

constexpr size_t kLine = 64;
// A chunk's last padding may go beyond it; the own form of a type is never larger than its wire
// form.
constexpr size_t kWireBytes = PinnedRing::kChunkBytes + kLine;
constexpr size_t kSlotBytes = 2 * kWireBytes + PinnedRing::kMostStretches * sizeof(float);

}  // namespace

PinnedRing::~PinnedRing() {
  DeleteMemory();
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    for (size_t i = 0; i < kSlots; ++i) {
      if (lane->fetched[i] != nullptr) lane->gpu->Delete(lane->fetched[i]);
      if (lane->landed[i] != nullptr) lane->gpu->Delete(lane->landed[i]);
    }
    if (lane->done != nullptr) lane->gpu->Delete(lane->done);
    if (lane->fetching != nullptr) lane->gpu->Delete(lane->fetching);
    if (lane->landing != nullptr) lane->gpu->Delete(lane->landing);
  }
}

Status PinnedRing::Prepare(Gpu* gpu) {
  if (gpu != nullptr && LaneOf(gpu) == nullptr) {
    const Status status = NewLane(gpu);
    if (!status.ok()) return status;
  }
  // Memory that is the host's serves until there is a GPU.
  if (memory_ != nullptr && (gpu == nullptr || pinned_by_ != nullptr)) return Status();
  DeleteMemory();
  return NewMemory();
}

PinnedRing::Lane* PinnedRing::LaneOf(const Gpu* gpu) {
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    if (lane->gpu == gpu) return lane.get();
  }
  return nullptr;
}

Status PinnedRing::NewLane(Gpu* gpu) {
  // Kept, with what there is of it, whatever happens: the destructor deletes that.
  lanes_.push_back(std::make_unique<Lane>());
  Lane* const lane = lanes_.back().get();
  lane->gpu = gpu;
  Status status = gpu->NewStream(&lane->fetching);
  if (status.ok()) status = gpu->NewStream(&lane->landing);
  if (status.ok()) status = gpu->NewEvent(&lane->done);
  for (size_t i = 0; i < kSlots && status.ok(); ++i) {
    status = gpu->NewEvent(&lane->fetched[i]);
    if (status.ok()) status = gpu->NewEvent(&lane->landed[i]);
  }
  return status;
}

Status PinnedRing::NewMemory() {
  if (lanes_.empty()) {
    host_ = NewLineMemory(kSlots * kSlotBytes);
    memory_ = host_.get();
    return memory_ != nullptr ? Status() : Status(Code::kUnavailable, "no memory for the chunks");
  }
  Gpu* const gpu = lanes_.front()->gpu;
  void* memory = nullptr;
  const Status status = gpu->NewPinned(kSlots * kSlotBytes, &memory);
  if (!status.ok()) return status;
  memory_ = static_cast<char*>(memory);
  pinned_by_ = gpu;
  return status;
}

void PinnedRing::DeleteMemory() {
  if (pinned_by_ != nullptr) pinned_by_->DeletePinned(memory_);
  pinned_by_ = nullptr;
  host_.reset();
  memory_ = nullptr;
}

PinnedRing::Slot PinnedRing::Take() {
  Slot slot;
  slot.number = next_++ % kSlots;
  slot.wire = memory_ + slot.number * kSlotBytes;
  slot.own = slot.wire + kWireBytes;
  slot.scales = reinterpret_cast<float*>(slot.own + kWireBytes);
  return slot;
}

}  // namespace tfmpi
