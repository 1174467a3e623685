#include "tensorflow_patches/core/gpu/direct/peer_collectives.h"

#include <algorithm>

#include "tensorflow_patches/core/gpu/await_event.h"
#include "tensorflow_patches/core/gpu/direct/all_ranks_ok.h"

namespace tfmpi {
namespace {

// What a rank sends to the others before they open its memory.
struct Offer {
  GpuHandle handle;
  uint64_t ok;  // 0: it has no memory to share
};

}  // namespace

Status PeerCollectives::Make(Gpu* gpu, Transport* transport, size_t chunk_bytes, TimePoint deadline,
                             std::unique_ptr<DeviceCollectives>* made) {
  std::unique_ptr<PeerCollectives> peers(new PeerCollectives(gpu, transport, chunk_bytes));
  Status status = peers->Share(deadline);
  if (status.ok()) status = peers->Try(deadline);
  if (status.ok()) {
    *made = std::move(peers);
    return status;
  }
  // All ranks get here, or the transport has failed.
  peers->Close();
  if (peers->Agree(Status(), deadline).ok()) peers->Closed();
  return status;
}

// After a failure other ranks may still read this rank's memory, which then stays until the process
// ends.
PeerCollectives::~PeerCollectives() {
  Close();
  sum_.reset();
  if (put_ != nullptr) gpu_->Delete(put_);
  if (own_ != nullptr && closed_) gpu_->DeleteMemory(own_);
}

void PeerCollectives::Close() {
  Abort();
  for (size_t r = 0; r < slots_.size(); ++r) {
    if (r != rank() && slots_[r] != nullptr) gpu_->CloseMemory(handles_[r], slots_[r]);
  }
  slots_.clear();
}

Status PeerCollectives::Share(TimePoint deadline) {
  Offer offer = {};
  void* memory = nullptr;
  Status status = gpu_->NewEvent(&put_);
  if (status.ok()) status = gpu_->NewSum(size(), &sum_);
  if (status.ok()) status = gpu_->NewSharedMemory(kSlots * chunk_bytes_, &memory, &offer.handle);
  own_ = static_cast<char*>(memory);
  offer.ok = status.ok() ? 1 : 0;
  std::vector<Offer> offers(size());
  TFMPI_RETURN_IF_NOT_OK(transport_->Allgather(
      &offer, offers.data(), std::vector<size_t>(size(), sizeof(Offer)), deadline));
  if (!status.ok()) return status;
  std::vector<GpuHandle> handles;
  for (size_t r = 0; r < size(); ++r) {
    if (offers[r].ok == 0) {
      return Status(Code::kUnavailable, "rank " + std::to_string(r) + " cannot share its memory");
    }
    handles.push_back(offers[r].handle);
  }
  return Agree(Open(handles), deadline);
}

Status PeerCollectives::Open(const std::vector<GpuHandle>& handles) {
  handles_ = handles;
  slots_.resize(size());
  slots_[rank()] = own_;
  for (size_t r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    void* memory = nullptr;
    TFMPI_RETURN_IF_NOT_OK(gpu_->OpenMemory(handles[r], &memory));
    slots_[r] = static_cast<char*>(memory);
  }
  return Status();
}

Status PeerCollectives::Agree(const Status& own, TimePoint deadline) {
  return AllRanksOk(transport_, own, deadline, "another rank cannot use the ranks' shared memory");
}

// A test reduction: fails for different GPUs with the same description, on hosts of the same name.
Status PeerCollectives::Try(TimePoint deadline) {
  float* value = nullptr;
  void *pinned = nullptr, *memory = nullptr;
  GpuStream stream = nullptr;
  Status status = gpu_->NewStream(&stream);
  if (status.ok()) status = gpu_->NewPinned(sizeof(float), &pinned);
  if (status.ok()) status = gpu_->NewMemory(sizeof(float), &memory);
  status = Agree(status, deadline);
  if (status.ok()) {
    value = static_cast<float*>(pinned);
    *value = static_cast<float>(rank() + 1);
    status = gpu_->Copy(memory, value, sizeof(float), stream);
    // Even if the copy has failed, since the other ranks call Allreduce, too.
    const Status reduced =
        Allreduce(memory, memory, 1, DataType::kFloat32, ReduceOp::kSum, 1, stream, deadline);
    if (status.ok()) status = reduced;
    if (status.ok()) status = gpu_->Copy(value, memory, sizeof(float), stream);
    if (status.ok()) status = gpu_->Record(put_, stream);
    if (status.ok()) status = AwaitPut(deadline);
    const auto expected = static_cast<float>(size() * (size() + 1) / 2);
    if (status.ok() && *value != expected) {
      status = Status(Code::kUnavailable,
                      "the ranks do not see the same memory on " + gpu_->description());
    }
    status = Agree(status, deadline);
  }
  if (memory != nullptr) gpu_->DeleteMemory(memory);
  if (pinned != nullptr) gpu_->DeletePinned(pinned);
  if (stream != nullptr) gpu_->Delete(stream);
  return status;
}

bool PeerCollectives::Takes(DataType type, ReduceOp op) const {
  return IsFloating(type) && (op == ReduceOp::kAverage || op == ReduceOp::kSum);
}

void PeerCollectives::Abort() {
  if (failure_.ok()) failure_ = Status(Code::kInternal, "the ranks have stopped sharing the GPU");
}

Status PeerCollectives::Allreduce(const void* in, void* out, size_t count, DataType type, ReduceOp,
                                  double scale, GpuStream stream, TimePoint deadline) {
  if (!failure_.ok()) return failure_;
  const DataType real = RealOf(type);
  const size_t elements = count * WireElements(type);
  const size_t at_once = chunk_bytes_ / SizeOf(real);
  for (size_t done = 0; done < elements && failure_.ok(); done += at_once) {
    failure_ = Reduce(static_cast<const char*>(in) + done * SizeOf(real),
                      static_cast<char*>(out) + done * SizeOf(real),
                      std::min(at_once, elements - done), real, scale, stream, deadline);
  }
  return failure_;
}

Status PeerCollectives::Reduce(const char* in, char* out, size_t count, DataType real, double scale,
                               GpuStream stream, TimePoint deadline) {
  const size_t offset = chunks_++ % kSlots * chunk_bytes_;
  Status status = gpu_->Copy(own_ + offset, in, count * SizeOf(real), stream);
  if (status.ok()) status = gpu_->Record(put_, stream);
  if (status.ok()) status = AwaitPut(deadline);
  if (!status.ok()) return status;
  std::vector<double> scales(size());
  TFMPI_RETURN_IF_NOT_OK(transport_->Allgather(
      &scale, scales.data(), std::vector<size_t>(size(), sizeof(double)), deadline));
  std::vector<const void*> sources;
  for (const char* slots : slots_) sources.push_back(slots + offset);
  return sum_->Enqueue(sources, scales, out, count, real, stream);
}

Status PeerCollectives::AwaitPut(TimePoint deadline) {
  return AwaitEvent(gpu_, put_, deadline, [this] { return StillBusy(*gpu_); });
}

}  // namespace tfmpi
