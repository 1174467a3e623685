#include "tensorflow_patches/core/gpu/staged/pinned_ring.h"

#include <utility>

namespace tfmpi {
namespace {

constexpr size_t kLine = 64;
constexpr size_t kPage = 4096;

}  // namespace

// With the padding at its end, a chunk may be larger than `chunk_bytes`.
PinnedRing::PinnedRing(size_t chunk_bytes) : wire_bytes_(chunk_bytes + kLine) {}

size_t PinnedRing::BufferBytes() const {
  return (kSlots * wire_bytes_ + kPage - 1) / kPage * kPage;
}

// The GPU's form of a type is never larger than its wire form.
size_t PinnedRing::OwnBytes() const { return wire_bytes_ + kMaxStretches * sizeof(float); }

size_t PinnedRing::SlotBytes() const { return OwnBytes() + (shared_ == nullptr ? wire_bytes_ : 0); }

PinnedRing::~PinnedRing() { DeleteMemory(); }

PinnedRing::Lane::~Lane() {
  for (size_t i = 0; i < kSlots; ++i) {
    if (fetched[i] != nullptr) gpu->Delete(fetched[i]);
    if (landed[i] != nullptr) gpu->Delete(landed[i]);
  }
  if (done != nullptr) gpu->Delete(done);
  if (fetching != nullptr) gpu->Delete(fetching);
  if (landing != nullptr) gpu->Delete(landing);
}

Status PinnedRing::Prepare(Gpu* gpu) {
  if (gpu != nullptr && LaneOf(gpu) == nullptr) {
    TFMPI_RETURN_IF_NOT_OK(NewLane(gpu));
  }
  // Ordinary memory is sufficient until there is a GPU.
  if (memory_ != nullptr && (gpu == nullptr || pinned_by_ != nullptr)) return Status();
  DeleteMemory();
  return NewMemory();
}

Status PinnedRing::Share(std::unique_ptr<NodeBuffers> buffers, Gpu* gpu) {
  DeleteMemory();
  shared_ = std::move(buffers);
  return Prepare(gpu);
}

void PinnedRing::Unshare() {
  DeleteMemory();
  shared_ = nullptr;
}

PinnedRing::Lane* PinnedRing::LaneOf(const Gpu* gpu) {
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    if (lane->gpu == gpu) return lane.get();
  }
  return nullptr;
}

Status PinnedRing::NewLane(Gpu* gpu) {
  auto lane = std::make_unique<Lane>(gpu);
  Status status = gpu->NewStream(&lane->fetching);
  if (status.ok()) status = gpu->NewStream(&lane->landing);
  if (status.ok()) status = gpu->NewEvent(&lane->done);
  for (size_t i = 0; i < kSlots && status.ok(); ++i) {
    status = gpu->NewEvent(&lane->fetched[i]);
    if (status.ok()) status = gpu->NewEvent(&lane->landed[i]);
  }
  if (status.ok()) lanes_.push_back(std::move(lane));
  return status;
}

Status PinnedRing::NewMemory() {
  const size_t bytes = kSlots * SlotBytes();
  if (lanes_.empty()) {
    host_ = NewLineMemory(bytes);
    memory_ = host_.get();
    return memory_ != nullptr ? Status()
                              : Status(Code::kUnavailable, "no host memory for chunks of GPU data");
  }
  Gpu* const gpu = lanes_.front()->gpu;
  void* memory = nullptr;
  TFMPI_RETURN_IF_NOT_OK(gpu->NewPinned(bytes, &memory));
  memory_ = static_cast<char*>(memory);
  pinned_by_ = gpu;
  if (shared_ == nullptr) return Status();
  const Status status = gpu->Register(shared_->memory(), shared_->bytes());
  if (status.ok()) registered_by_ = gpu;
  if (!status.ok()) DeleteMemory();
  return status;
}

void PinnedRing::DeleteMemory() {
  if (registered_by_ != nullptr) registered_by_->Unregister(shared_->memory());
  registered_by_ = nullptr;
  if (pinned_by_ != nullptr) pinned_by_->DeletePinned(memory_);
  pinned_by_ = nullptr;
  host_.reset();
  memory_ = nullptr;
}

PinnedRing::Slot PinnedRing::Take() {
  const size_t turn = next_++;
  Slot slot;
  slot.number = turn % kSlots;
  slot.before = (turn + kSlots - kBehind) % kSlots;
  slot.offset = slot.number * wire_bytes_;
  slot.own = memory_ + slot.number * SlotBytes();
  slot.scales = reinterpret_cast<float*>(slot.own + wire_bytes_);
  slot.wire =
      shared_ != nullptr ? shared_->of(shared_->rank()) + slot.offset : slot.own + OwnBytes();
  return slot;
}

}  // namespace tfmpi
