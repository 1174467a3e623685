#include "tensorflow_patches/core/gpu/staged/staged_reduction.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "tensorflow_patches/core/cpu/reduce.h"
#include "tensorflow_patches/core/gpu/await_event.h"
#include "tensorflow_patches/core/observability/timeline.h"

namespace tfmpi {
namespace {

using Slot = PinnedRing::Slot;
using Lane = PinnedRing::Lane;

// Where a stretch's elements are in a slot, in the GPU's form.
char* GpuForm(const Slot& slot, const Stretch& stretch) {
  if (IsWireForm(stretch.type)) return slot.wire + stretch.wire_offset;
  return slot.own + stretch.wire_offset / WireBytes(stretch.type, 1) * SizeOf(stretch.type);
}

bool IsWeight(float scale) { return std::isfinite(scale) && scale >= 0; }

// Merges copies that are consecutive on both sides.
class Copies {
 public:
  Copies(Gpu* gpu, GpuStream stream) : gpu_(gpu), stream_(stream) {}

  Status Add(void* to, const void* from, size_t bytes) {
    if (bytes == 0) return Status();
    if (bytes_ != 0 && to_ + bytes_ == to && from_ + bytes_ == from) {
      bytes_ += bytes;
      return Status();
    }
    const Status status = Flush();
    to_ = static_cast<char*>(to);
    from_ = static_cast<const char*>(from);
    bytes_ = bytes;
    return status;
  }

  Status Flush() {
    const size_t bytes = std::exchange(bytes_, 0);
    return bytes == 0 ? Status() : gpu_->Copy(to_, from_, bytes, stream_);
  }

 private:
  Gpu* const gpu_;
  const GpuStream stream_;
  char* to_ = nullptr;
  const char* from_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace

struct StagedReduction::Work {
  const std::vector<FusionEntry>& entries;
  std::vector<Chunk> chunks;
  double scale;
  TimePoint deadline;
  std::vector<double> scales = std::vector<double>(entries.size(), 1);  // by entry
  std::vector<Slot> slots = {};                                         // by chunk
  Status refused = Status();                                            // an invalid scale

  bool broadcasts() const { return entries[0].signature.kind == OpKind::kBroadcast; }
  // For messages. A rank without a request still waits for its copies of earlier results.
  std::string awaited() const {
    const Request* const request = entries[0].request;
    return request != nullptr ? "'" + request->name + "'" : "an earlier result";
  }
};

Status StagedReduction::Allreduce(const std::vector<FusionEntry>& entries, double scale,
                                  TimePoint deadline) {
  Work work{entries, CutIntoChunks(entries, chunk_bytes_, PinnedRing::kMaxStretches), scale,
            deadline};
  const Status status = Run(&work);
  return status.ok() ? work.refused : status;
}

Status StagedReduction::Broadcast(const FusionEntry& entry, TimePoint deadline) {
  const std::vector<FusionEntry> entries = {entry};
  Work work{entries, CutIntoChunks(entries, chunk_bytes_, PinnedRing::kMaxStretches), 1, deadline};
  const bool root = transport_->topology().rank == entry.signature.root;
  for (Chunk& chunk : work.chunks) {
    Stretch& stretch = chunk.stretches.front();
    stretch.input = root ? stretch.output : nullptr;
    if (root) stretch.output = nullptr;
  }
  return Run(&work);
}

Status StagedReduction::Run(Work* work) {
  Status status;
  for (const FusionEntry& entry : work->entries) {
    Gpu* const gpu = entry.request != nullptr ? entry.request->memory.gpu : nullptr;
    if (status.ok()) status = ring_.Prepare(gpu);
  }
  const size_t chunks = work->chunks.size();
  size_t fetched = 0;
  for (size_t i = 0; i < chunks && status.ok(); ++i) {
    // Starts later chunks before it waits for this one.
    for (; fetched < std::min(i + PinnedRing::kAhead, chunks) && status.ok(); ++fetched) {
      work->slots.push_back(ring_.Take());
      status = Fetch(*work, fetched);
    }
    const Slot& slot = work->slots[i];
    const Chunk& chunk = work->chunks[i];
    if (status.ok()) status = AwaitFetched(slot, *work);
    if (status.ok()) ReadScales(slot, chunk, work);
    if (status.ok()) status = Exchange(slot, chunk, *work);
    if (status.ok()) status = Land(slot, chunk, *work);
  }
  const Status continued = LetSubmittersContinue(*work);
  return Fatal(status.ok() ? continued : status);
}

// Enqueues the chunk's copies from the GPU, after earlier copies that use its slot.
Status StagedReduction::Fetch(const Work& work, size_t number) {
  const Slot& slot = work.slots[number];
  size_t scales = 0;
  for (const std::unique_ptr<Lane>& lane : ring_.lanes()) {
    Gpu* const gpu = lane->gpu;
    Copies copies(gpu, lane->fetching);
    Status status;
    for (const std::unique_ptr<Lane>& other : ring_.lanes()) {
      if (status.ok()) status = gpu->Wait(lane->fetching, other->landed[slot.number]);
    }
    const Request* last = nullptr;
    const void* last_scale = nullptr;
    for (const Stretch& stretch : work.chunks[number].stretches) {
      const Request* const request = work.entries[stretch.entry].request;
      if (request == nullptr || request->memory.gpu != gpu || !status.ok()) continue;
      if (request != last) {
        status = gpu->Wait(lane->fetching, request->memory.ready);
        last = request;
      }
      const void* const scale = request->memory.weight_on_gpu;
      if (status.ok() && scale != nullptr && scale != last_scale) {
        status = gpu->Copy(slot.scales + scales++, scale, sizeof(float), lane->fetching);
        last_scale = scale;
      }
      if (status.ok() && stretch.input != nullptr) {
        status = copies.Add(GpuForm(slot, stretch), stretch.input, stretch.bytes());
      }
    }
    if (status.ok()) status = copies.Flush();
    if (status.ok()) status = gpu->Record(lane->fetched[slot.number], lane->fetching);
    if (!status.ok()) return status;
  }
  return Status();
}

// Waits until the chunk has arrived and its slot belongs to the host.
Status StagedReduction::AwaitFetched(const Slot& slot, const Work& work) {
  const Span span(Stage::kPack, "from the GPU");
  for (const std::unique_ptr<Lane>& lane : ring_.lanes()) {
    TFMPI_RETURN_IF_NOT_OK(Await(lane->gpu, lane->fetched[slot.number], work));
  }
  return Status();
}

Status StagedReduction::Await(Gpu* gpu, GpuEvent event, const Work& work) {
  return AwaitEvent(gpu, event, work.deadline, [&] { return NotArrived(work.awaited(), *gpu); });
}

// Reads the scales in the order in which Fetch copies them.
void StagedReduction::ReadScales(const Slot& slot, const Chunk& chunk, Work* work) {
  size_t next = 0;
  for (const std::unique_ptr<Lane>& lane : ring_.lanes()) {
    const void* last = nullptr;
    for (const Stretch& stretch : chunk.stretches) {
      const Request* const request = work->entries[stretch.entry].request;
      if (request == nullptr || request->memory.gpu != lane->gpu) continue;
      const void* const scale = request->memory.weight_on_gpu;
      if (scale == nullptr) {
        work->scales[stretch.entry] = request->scale;
        continue;
      }
      if (scale != last) ++next;
      last = scale;
      const float value = slot.scales[next - 1];
      work->scales[stretch.entry] = value;
      if (IsWeight(value)) continue;
      // The other ranks' results contain this value; only this rank gets an error.
      work->refused = Status(Code::kInvalidArgument, "the weight of '" + request->name + "' is " +
                                                         std::to_string(value) +
                                                         "; it must be finite and not negative");
    }
  }
}

Status StagedReduction::Exchange(const Slot& slot, const Chunk& chunk, const Work& work) {
  // When the exchange has ended, the others may reuse what the copies of slot.before read, so these
  // must have ended (PinnedRing).
  for (const std::unique_ptr<Lane>& lane : ring_.lanes()) {
    if (ring_.shared() == nullptr) break;
    TFMPI_RETURN_IF_NOT_OK(Await(lane->gpu, lane->landed[slot.before], work));
  }
  if (work.broadcasts()) return BroadcastChunk(slot, chunk, work);
  {
    const Span span(Stage::kPack, "", chunk.bytes);
    for (const Stretch& stretch : chunk.stretches) {
      char* const wire = slot.wire + stretch.wire_offset;
      const size_t bytes = WireBytes(stretch.type, stretch.count);
      if (stretch.input == nullptr) {
        std::memset(wire, 0, bytes);
      } else if (!IsWireForm(stretch.type) || work.scales[stretch.entry] != 1) {
        Pack(stretch.type, GpuForm(slot, stretch), wire, stretch.count, work.scales[stretch.entry]);
      }
      std::memset(wire + bytes, 0, stretch.padding);
    }
  }
  TFMPI_RETURN_IF_NOT_OK(Reduce(slot, chunk, work));
  const Span span(Stage::kUnpack, "", chunk.bytes);
  for (const Stretch& stretch : chunk.stretches) {
    if (stretch.output == nullptr || IsWireForm(stretch.type)) continue;
    const size_t element = WireBytes(stretch.type, 1);
    char* const gpu_form = GpuForm(slot, stretch);
    ForEachRun(slot, chunk, work, stretch.wire_offset, stretch.count * element,
               [&](const char* from, size_t at, size_t bytes) {
                 Unpack(stretch.type, from, gpu_form + at / element * SizeOf(stretch.type),
                        bytes / element, 1);
                 return Status();
               });
  }
  return Status();
}

// Broadcasts into each rank's own slot. If the node's ranks share slots, a barrier follows, which
// frees earlier slots as a reduction does (PinnedRing).
Status StagedReduction::BroadcastChunk(const Slot& slot, const Chunk& chunk, const Work& work) {
  const Stretch& only = chunk.stretches.front();
  const Span span(Stage::kReduce, "broadcast", only.bytes());
  const Status status = transport_->Broadcast(GpuForm(slot, only), only.bytes(),
                                              work.entries[0].signature.root, work.deadline);
  if (!status.ok() || ring_.shared() == nullptr) return status;
  return ring_.shared()->Barrier(work.deadline);
}

Status StagedReduction::Reduce(const Slot& slot, const Chunk& chunk, const Work& work) {
  const Signature& common = Common(work.entries);
  const DataType type = WireType(common.dtype);
  const Reduction reduction = {chunk.bytes / SizeOf(type), type, WireOp(common.op), work.scale,
                               MayRound(common)};
  const Span span(Stage::kReduce, "", chunk.bytes);
  if (ring_.shared() != nullptr) {
    return ring_.shared()->Allreduce(slot.offset, reduction, work.deadline);
  }
  return transport_->Allreduce(slot.wire, slot.wire, reduction, work.deadline);
}

// Calls `take(source, offset, length)` for each contiguous run of the `bytes` bytes at `begin` of a
// chunk's result: with shared slots, each rank's share is in that rank's slot. `offset` counts from
// `begin`.
template <typename Take>
Status StagedReduction::ForEachRun(const Slot& slot, const Chunk& chunk, const Work& work,
                                   size_t begin, size_t bytes, const Take& take) const {
  const NodeBuffers* const shared = ring_.shared();
  if (shared == nullptr || work.broadcasts()) return take(slot.wire + begin, 0, bytes);
  const size_t element = SizeOf(WireType(work.entries[0].signature.dtype));
  const size_t count = chunk.bytes / element;
  for (int r = 0; r < shared->ranks(); ++r) {
    const size_t from = std::max(begin, shared->ShareStart(count, r) * element);
    const size_t to = std::min(begin + bytes, shared->ShareStart(count, r + 1) * element);
    if (from >= to) continue;
    TFMPI_RETURN_IF_NOT_OK(take(shared->of(r) + slot.offset + from, from - begin, to - from));
  }
  return Status();
}

Status StagedReduction::Land(const Slot& slot, const Chunk& chunk, const Work& work) {
  const Span span(Stage::kUnpack, "to the GPU", chunk.bytes);
  for (const std::unique_ptr<Lane>& lane : ring_.lanes()) {
    Copies copies(lane->gpu, lane->landing);
    Status status;
    for (const Stretch& stretch : chunk.stretches) {
      const Request* const request = work.entries[stretch.entry].request;
      if (request == nullptr || request->memory.gpu != lane->gpu || !status.ok()) continue;
      if (stretch.output == nullptr) continue;
      if (!IsWireForm(stretch.type) || work.broadcasts()) {
        status = copies.Add(stretch.output, GpuForm(slot, stretch), stretch.bytes());
        continue;
      }
      const size_t padding = stretch.padded_output ? stretch.padding : 0;
      status = ForEachRun(slot, chunk, work, stretch.wire_offset, stretch.bytes() + padding,
                          [&](const char* from, size_t at, size_t bytes) {
                            return copies.Add(stretch.output + at, from, bytes);
                          });
    }
    if (status.ok()) status = copies.Flush();
    if (status.ok()) status = lane->gpu->Record(lane->landed[slot.number], lane->landing);
    if (!status.ok()) return status;
  }
  return Status();
}

// Makes each submitter's stream wait for all copies that were enqueued.
Status StagedReduction::LetSubmittersContinue(const Work& work) {
  Status failure;
  for (const std::unique_ptr<Lane>& lane : ring_.lanes()) {
    Gpu* const gpu = lane->gpu;
    for (const GpuStream stream : {lane->fetching, lane->landing}) {
      GpuStream last = nullptr;
      Status status = gpu->Record(lane->done, stream);
      for (const FusionEntry& entry : work.entries) {
        if (entry.request == nullptr || entry.request->memory.gpu != gpu) continue;
        if (entry.request->memory.stream == last) continue;
        last = entry.request->memory.stream;
        if (status.ok()) status = gpu->Wait(last, lane->done);
      }
      if (failure.ok()) failure = status;
    }
  }
  return failure;
}

}  // namespace tfmpi
