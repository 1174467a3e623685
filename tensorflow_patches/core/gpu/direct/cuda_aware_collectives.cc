#include "tensorflow_patches/core/gpu/direct/cuda_aware_collectives.h"

#include <algorithm>

#include "tensorflow_patches/core/gpu/await_event.h"
#include "tensorflow_patches/core/gpu/direct/all_ranks_ok.h"

namespace tfmpi {
namespace {

// Shares begin at multiples of this, as the kernels require, and contain whole elements of any
// type.
constexpr size_t kAlignment = 16;

size_t ShareBytes(size_t bytes, size_t ranks) {
  const size_t even = (bytes + ranks - 1) / ranks;
  return (even + kAlignment - 1) / kAlignment * kAlignment;
}

// A rank's test data and weight. The weighted sums are integers, exact in float32. If data is
// missing or is another rank's (except one kPeriod ranks away), a sum is wrong.
constexpr size_t kPeriod = 251, kWeights = 7;
static_assert(4000 * kWeights * 2 * (kPeriod - 1) < (1 << 24), "not exact with 4000 ranks");
double Value(size_t rank, size_t i) { return static_cast<double>(i % kPeriod + rank % kPeriod); }
double Weight(size_t rank) { return static_cast<double>(rank % kWeights + 1); }

}  // namespace

CudaAwareCollectives::CudaAwareCollectives(Gpu* gpu, Transport* transport, size_t chunk_bytes)
    : gpu_(gpu),
      transport_(transport),
      messages_(transport->gpu_messages()),
      chunk_bytes_(chunk_bytes) {}

Status CudaAwareCollectives::Make(Gpu* gpu, Transport* transport, size_t chunk_bytes,
                                  TimePoint deadline, std::unique_ptr<DeviceCollectives>* made) {
  std::unique_ptr<CudaAwareCollectives> aware(
      new CudaAwareCollectives(gpu, transport, chunk_bytes));
  Status status = AllRanksOk(transport, aware->Prepare(), deadline);
  if (status.ok()) status = aware->Try(deadline);
  if (status.ok()) *made = std::move(aware);
  return status;
}

// After a failure MPI may still write to the slots, whose memory then stays until the process ends.
CudaAwareCollectives::~CudaAwareCollectives() {
  sum_.reset();
  for (const Slot& slot : slots_) {
    if (slot.event != nullptr) gpu_->Delete(slot.event);
    if (slot.memory != nullptr && failure_.ok()) gpu_->DeleteMemory(slot.memory);
  }
}

Status CudaAwareCollectives::Prepare() {
  Status status = gpu_->MakeCurrent();
  if (status.ok()) status = gpu_->NewSum(size(), &sum_);
  const size_t shares = size() * ShareBytes(chunk_bytes_, size());
  for (size_t i = 0; i < kSlots && status.ok(); ++i) {
    slots_[i].number = static_cast<int>(i);
    void* memory = nullptr;
    status = gpu_->NewMemory(2 * shares, &memory);
    slots_[i].memory = static_cast<char*>(memory);
    if (status.ok()) status = gpu_->NewEvent(&slots_[i].event);
  }
  return status;
}

// Reduces one full chunk and then 5 elements, of which only the first two ranks have a share. The
// exchange gets half of the time until the deadline: if MPI never delivers, the ranks still agree.
Status CudaAwareCollectives::Try(TimePoint deadline) {
  const size_t count = chunk_bytes_ / sizeof(float) + 5;
  void *pinned = nullptr, *memory = nullptr;
  GpuStream stream = nullptr;
  Status status = gpu_->NewStream(&stream);
  if (status.ok()) status = gpu_->NewPinned(count * sizeof(float), &pinned);
  if (status.ok()) status = gpu_->NewMemory(count * sizeof(float), &memory);
  status = AllRanksOk(transport_, status, deadline);
  if (status.ok()) {
    const TimePoint now = Clock::now();
    status = TryOne(static_cast<float*>(pinned), memory, count, stream, now + (deadline - now) / 2);
    status = AllRanksOk(transport_, status, deadline, "another rank got a wrong sum, or none");
  }
  if (memory != nullptr) gpu_->DeleteMemory(memory);  // MPI never had this memory
  if (pinned != nullptr) gpu_->DeletePinned(pinned);
  if (stream != nullptr) gpu_->Delete(stream);
  return status;
}

Status CudaAwareCollectives::TryOne(float* values, void* memory, size_t count, GpuStream stream,
                                    TimePoint deadline) {
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<float>(Value(rank(), i));
  Status status = gpu_->Copy(memory, values, count * sizeof(float), stream);
  // Even if the copy has failed, since the other ranks call Allreduce, too.
  const Status reduced = Allreduce(memory, memory, count, DataType::kFloat32, ReduceOp::kAverage,
                                   Weight(rank()), stream, deadline);
  if (status.ok()) status = reduced;
  if (status.ok()) status = gpu_->Copy(values, memory, count * sizeof(float), stream);
  if (status.ok()) status = gpu_->Record(slots_[0].event, stream);
  if (status.ok()) {
    status = AwaitEvent(gpu_, slots_[0].event, deadline, [this] { return StillBusy(*gpu_); });
  }
  if (failure_.ok()) failure_ = status;
  double weights = 0, first = 0;
  for (size_t r = 0; r < size(); ++r) {
    weights += Weight(r);
    first += Weight(r) * Value(r, 0);
  }
  for (size_t i = 0; i < count && status.ok(); ++i) {
    const double expected = first + weights * Value(0, i);
    if (values[i] == static_cast<float>(expected)) continue;
    status = Status(Code::kUnavailable,
                    transport_->description() +
                        " reports support for GPU memory, but one of its sums was wrong: element " +
                        std::to_string(i) + " is " + std::to_string(values[i]) + ", not " +
                        std::to_string(expected));
  }
  return status;
}

bool CudaAwareCollectives::Takes(DataType type, ReduceOp op) const {
  return IsFloating(type) && (op == ReduceOp::kAverage || op == ReduceOp::kSum);
}

void CudaAwareCollectives::Abort() {
  if (failure_.ok()) failure_ = Status(Code::kInternal, "the exchange was aborted");
}

Status CudaAwareCollectives::Allreduce(const void* in, void* out, size_t count, DataType type,
                                       ReduceOp, double scale, GpuStream stream,
                                       TimePoint deadline) {
  if (!failure_.ok()) return failure_;
  Terms terms;
  terms.type = RealOf(type);
  terms.scales.resize(size());
  terms.stream = stream;
  failure_ = transport_->Allgather(&scale, terms.scales.data(),
                                   std::vector<size_t>(size(), sizeof(double)), deadline);
  if (failure_.ok()) {
    failure_ = ReduceAll(static_cast<const char*>(in), static_cast<char*>(out),
                         count * SizeOf(type), terms, deadline);
  }
  return failure_;
}

Status CudaAwareCollectives::ReduceAll(const char* in, char* out, size_t bytes, const Terms& terms,
                                       TimePoint deadline) {
  const size_t chunks = (bytes + chunk_bytes_ - 1) / chunk_bytes_;
  size_t started = 0;
  size_t ended = 0;
  for (int polls = 0; ended < chunks; ++polls) {
    bool moved = false;
    Slot* const next = &slots_[started % kSlots];
    // In order, so that all ranks have a chunk in the same slot.
    if (started < chunks && next->stage == Stage::kFree) {
      const size_t begin = started++ * chunk_bytes_;
      TFMPI_RETURN_IF_NOT_OK(
          Put(next, in + begin, out + begin, std::min(chunk_bytes_, bytes - begin), terms.stream));
      moved = true;
    }
    for (Slot& slot : slots_) {
      if (slot.stage == Stage::kFree) continue;
      TFMPI_RETURN_IF_NOT_OK(Advance(&slot, terms, &moved));
      if (slot.stage == Stage::kFree) ++ended;
    }
    if (moved) {
      polls = 0;
    } else if (!PauseBetweenPolls(polls, deadline)) {
      return Late();
    }
  }
  return Status();
}

// Needs no wait: the copy out of the slot's previous chunk was enqueued earlier on this stream, and
// MPI is done with the slot.
Status CudaAwareCollectives::Put(Slot* slot, const char* in, char* out, size_t bytes,
                                 GpuStream stream) {
  slot->out = out;
  slot->bytes = bytes;
  Status status = gpu_->Copy(slot->memory, in, bytes, stream);
  if (status.ok()) status = gpu_->Record(slot->event, stream);
  slot->stage = Stage::kComing;
  return status;
}

Status CudaAwareCollectives::Advance(Slot* slot, const Terms& terms, bool* moved) {
  bool ended = false;
  Status status;
  switch (slot->stage) {
    case Stage::kFree:
      return status;
    case Stage::kComing:
      status = gpu_->Query(slot->event, &ended);
      if (!status.ok() || !ended) return status;
      status = Share(*slot);
      slot->stage = Stage::kSharing;
      break;
    case Stage::kSharing:
      status = messages_->Test(2 * slot->number, &ended);
      if (!status.ok() || !ended) return status;
      status = Add(*slot, terms);
      slot->stage = Stage::kAdding;
      break;
    case Stage::kAdding:
      status = gpu_->Query(slot->event, &ended);
      if (!status.ok() || !ended) return status;
      status = Spread(*slot);
      slot->stage = Stage::kSpreading;
      break;
    case Stage::kSpreading:
      status = messages_->Test(2 * slot->number + 1, &ended);
      if (!status.ok() || !ended) return status;
      status = CopyOut(*slot, terms.stream);
      slot->stage = Stage::kFree;
      break;
  }
  *moved = true;
  return status;
}

size_t CudaAwareCollectives::Begin(size_t bytes, size_t rank) const {
  return std::min(bytes, rank * ShareBytes(bytes, size()));
}

char* CudaAwareCollectives::Received(const Slot& slot, size_t rank) const {
  return slot.memory + (size() + rank) * ShareBytes(chunk_bytes_, size());
}

Status CudaAwareCollectives::Share(const Slot& slot) {
  std::vector<GpuPart> send(size()), receive(size());
  for (size_t r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    send[r] = {slot.memory + Begin(slot.bytes, r), Length(slot.bytes, r)};
    receive[r] = {Received(slot, r), Length(slot.bytes, rank())};
  }
  return messages_->Start(2 * slot.number, send, receive);
}

Status CudaAwareCollectives::Add(const Slot& slot, const Terms& terms) {
  std::vector<const void*> sources;
  for (size_t r = 0; r < size(); ++r) sources.push_back(Received(slot, r));
  sources[rank()] = slot.memory + Begin(slot.bytes, rank());
  const size_t count = Length(slot.bytes, rank()) / SizeOf(terms.type);
  Status status;
  if (count != 0) {
    status = sum_->Enqueue(sources, terms.scales, Received(slot, rank()), count, terms.type,
                           terms.stream);
  }
  return status.ok() ? gpu_->Record(slot.event, terms.stream) : status;
}

Status CudaAwareCollectives::Spread(const Slot& slot) {
  std::vector<GpuPart> send(size()), receive(size());
  for (size_t r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    send[r] = {Received(slot, rank()), Length(slot.bytes, rank())};
    receive[r] = {slot.memory + Begin(slot.bytes, r), Length(slot.bytes, r)};
  }
  return messages_->Start(2 * slot.number + 1, send, receive);
}

Status CudaAwareCollectives::CopyOut(const Slot& slot, GpuStream stream) {
  const size_t begin = Begin(slot.bytes, rank()), end = Begin(slot.bytes, rank() + 1);
  Status status;
  if (begin != 0) status = gpu_->Copy(slot.out, slot.memory, begin, stream);
  if (status.ok() && end != begin) {
    status = gpu_->Copy(slot.out + begin, Received(slot, rank()), end - begin, stream);
  }
  if (status.ok() && slot.bytes != end) {
    status = gpu_->Copy(slot.out + end, slot.memory + end, slot.bytes - end, stream);
  }
  return status;
}

Status CudaAwareCollectives::Late() const {
  for (const Slot& slot : slots_) {
    if (slot.stage != Stage::kSharing && slot.stage != Stage::kSpreading) continue;
    return Status(Code::kDeadlineExceeded,
                  "an exchange between GPUs by " + description() +
                      " has not ended within TF_MPI_STALL_TIMEOUT (at most 300 s): another rank "
                      "has died or does not take part. If all ranks are alive, try "
                      "TF_MPI_GPU_TRANSPORT=staged");
  }
  return Status(Code::kDeadlineExceeded, StillBusy(*gpu_));
}

}  // namespace tfmpi
