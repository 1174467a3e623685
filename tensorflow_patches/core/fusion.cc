#include "tensorflow_patches/core/fusion.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "tensorflow_patches/core/reduce.h"
#include "tensorflow_patches/core/timeline.h"

namespace tfmpi {
namespace {

size_t Count(const Signature& signature) {
  return static_cast<size_t>(NumElements(signature.shape));
}

size_t WireBytes(DataType type, size_t count) {
  return count * WireElements(type) * SizeOf(WireType(type));
}

// An average is a sum on the wire.
ReduceOp WireOp(ReduceOp op) { return op == ReduceOp::kAverage ? ReduceOp::kSum : op; }

void PackOne(const Slot& slot, char* next) {
  const DataType type = slot.signature.dtype;
  const Request& request = *slot.request;
  if (slot.signature.parts == nullptr) {
    return Pack(type, request.input, next, Count(slot.signature), request.scale);
  }
  for (size_t i = 0; i < request.parts.size(); ++i) {
    const size_t count = static_cast<size_t>(NumElements(slot.signature.parts->shapes[i]));
    Pack(type, request.parts[i].input, next, count, request.scale);
    const size_t bytes = WireBytes(type, count);
    const size_t room = WireBytes(type, PaddedElements(type, count));
    std::memset(next + bytes, 0, room - bytes);
    next += room;
  }
}

void UnpackOne(const Slot& slot, const char* next) {
  const DataType type = slot.signature.dtype;
  const Request& request = *slot.request;
  if (slot.signature.parts == nullptr) {
    return Unpack(type, next, request.output, Count(slot.signature), 1);
  }
  if (request.output != nullptr) {
    std::memcpy(request.output, next, WireBytes(type, Count(slot.signature)));
    return;
  }
  for (size_t i = 0; i < request.parts.size(); ++i) {
    const size_t count = static_cast<size_t>(NumElements(slot.signature.parts->shapes[i]));
    Unpack(type, next, request.parts[i].output, count, 1);
    next += WireBytes(type, PaddedElements(type, count));
  }
}

int64_t Total(const std::vector<int64_t>& rows) {
  return std::accumulate(rows.begin(), rows.end(), int64_t{0});
}

// Of a rank that has joined: it has none, and wants none.
class DroppedRows : public RowAccess {
 public:
  void Begin(const std::vector<int64_t>&, int) override {}
  void Put(int64_t, int64_t, char*) override {}
  void Take(int, int64_t, int64_t, const char*) override {}
};

}  // namespace

char* Fusion::Buffer(size_t bytes) {
  if (bytes > buffer_bytes_) {
    buffer_ = NewLineMemory(bytes);
    buffer_bytes_ = bytes;
  }
  return buffer_.get();
}

Status Fusion::Allreduce(const std::vector<Slot>& slots, int contributors, TimePoint deadline) {
  const Slot& first = slots.front();
  const double scale = first.signature.op == ReduceOp::kAverage ? 1.0 / contributors : 1.0;
  if (slots.size() > 1 || first.signature.parts != nullptr) {
    return ReduceFused(slots, scale, deadline);
  }
  if (Count(first.signature) == 0) return Status();
  if (IsWireForm(first.signature.dtype)) return ReduceInPlace(first, scale, deadline);
  return ReduceInChunks(first, scale, deadline);
}

Status Fusion::ReduceInPlace(const Slot& slot, double scale, TimePoint deadline) {
  const DataType type = slot.signature.dtype;
  const size_t count = Count(slot.signature);
  const void* in = slot.request != nullptr ? slot.request->input : nullptr;
  void* out = slot.request != nullptr ? slot.request->output : nullptr;
  std::vector<char> zeros;
  if (slot.request == nullptr) {
    zeros.resize(count * SizeOf(type));
    in = out = zeros.data();
  }
  if (slot.request != nullptr && slot.request->scale != 1) {
    const Span span(Stage::kPack, "", count * SizeOf(type));
    Pack(type, in, out, count, slot.request->scale);
    in = out;
  }
  return Reduce(in, out, count * WireElements(type), slot.signature, scale, deadline);
}

Status Fusion::ReduceInChunks(const Slot& slot, double scale, TimePoint deadline) {
  const DataType type = slot.signature.dtype;
  const size_t count = Count(slot.signature);
  const size_t chunk = std::min(count, std::max<size_t>(1, threshold_ / WireBytes(type, 1)));
  char* buffer = Buffer(WireBytes(type, chunk));
  for (size_t start = 0; start < count; start += chunk) {
    const size_t n = std::min(chunk, count - start);
    const size_t offset = start * SizeOf(type);
    if (slot.request != nullptr) {
      const Span span(Stage::kPack, "", n * SizeOf(type));
      Pack(type, static_cast<const char*>(slot.request->input) + offset, buffer, n,
           slot.request->scale);
    } else {
      std::memset(buffer, 0, WireBytes(type, n));
    }
    const Status status =
        Reduce(buffer, buffer, n * WireElements(type), slot.signature, scale, deadline);
    if (!status.ok()) return status;
    if (slot.request != nullptr) {
      const Span span(Stage::kUnpack, "", n * SizeOf(type));
      Unpack(type, buffer, static_cast<char*>(slot.request->output) + offset, n, 1);
    }
  }
  return Status();
}

Status Fusion::ReduceFused(const std::vector<Slot>& slots, double scale, TimePoint deadline) {
  size_t bytes = 0;
  for (const Slot& slot : slots) bytes += WireBytes(slot.signature.dtype, Count(slot.signature));
  if (bytes == 0) return Status();
  // Alone and with room of its own for the result, a request needs none here.
  const Request* const only = slots.size() == 1 ? slots.front().request : nullptr;
  const bool in_place = only != nullptr && only->output != nullptr;
  char* const buffer = in_place ? static_cast<char*>(only->output) : Buffer(bytes);
  PackAll(slots, buffer, bytes);
  const Signature& first = slots.front().signature;
  const size_t count = bytes / SizeOf(WireType(first.dtype));
  const Status status = Reduce(buffer, buffer, count, first, scale, deadline);
  if (status.ok() && !in_place) UnpackAll(slots, buffer, bytes);
  return status;
}

Status Fusion::Reduce(const void* in, void* out, size_t count, const Signature& signature,
                      double scale, TimePoint deadline) {
  const DataType wire = WireType(signature.dtype);
  const Span span(Stage::kReduce, "", count * SizeOf(wire));
  return transport_->Allreduce(in, out, {count, wire, WireOp(signature.op), scale}, deadline);
}

void Fusion::PackAll(const std::vector<Slot>& slots, char* next, size_t bytes) {
  const Span span(Stage::kPack, "", bytes);
  for (const Slot& slot : slots) {
    const size_t size = WireBytes(slot.signature.dtype, Count(slot.signature));
    if (slot.request == nullptr) {
      std::memset(next, 0, size);
    } else {
      PackOne(slot, next);
    }
    next += size;
  }
}

void Fusion::UnpackAll(const std::vector<Slot>& slots, const char* next, size_t bytes) {
  const Span span(Stage::kUnpack, "", bytes);
  for (const Slot& slot : slots) {
    if (slot.request != nullptr) UnpackOne(slot, next);
    next += WireBytes(slot.signature.dtype, Count(slot.signature));
  }
}

Status Fusion::Allgather(const Slot& slot, const std::vector<int64_t>& rows, TimePoint deadline) {
  const size_t row_bytes = RowBytes(slot.signature);
  std::vector<size_t> bytes;
  size_t total = 0;
  for (int64_t n : rows) {
    bytes.push_back(static_cast<size_t>(n) * row_bytes);
    total += bytes.back();
  }
  std::vector<char> dropped;
  const void* in = nullptr;
  void* out = nullptr;
  if (slot.request != nullptr) {
    in = slot.request->input;
    out = slot.request->allocate(rows);
  }
  // A rank that cannot hold the result still takes part: its peers wait in the same collective.
  const bool no_room = slot.request != nullptr && out == nullptr;
  if (out == nullptr) {
    dropped.resize(total);
    out = dropped.data();
  }
  if (total != 0) {
    const Span span(Stage::kReduce, "allgather", total);
    const Status status = transport_->Allgather(in, out, bytes, deadline);
    if (!status.ok()) return status;
  }
  if (no_room && total != 0) {
    return Status(Code::kInternal,
                  "no memory for the result of allgather '" + slot.request->name + "'");
  }
  return Status();
}

Status Fusion::Exchange(const Slot& slot, const std::vector<int64_t>& rows, int contributors,
                        TimePoint deadline) {
  // All ranks know all rows, so that all decide alike.
  const int64_t limit = slot.signature.row_limit;
  if (limit >= 0 && Total(rows) > limit) return Status();
  const size_t row_bytes = RowBytes(slot.signature);
  DroppedRows dropped;
  RowAccess* const access = slot.request != nullptr ? slot.request->rows : &dropped;
  access->Begin(rows, contributors);
  const Span span(Stage::kReduce, "exchange", row_bytes * static_cast<size_t>(Total(rows)));
  return transport_->Exchange(rows, row_bytes, access, deadline);
}

Status Fusion::Broadcast(const Slot& slot, TimePoint deadline) {
  const size_t bytes = Count(slot.signature) * SizeOf(slot.signature.dtype);
  if (bytes == 0) return Status();
  std::vector<char> dropped(slot.request == nullptr ? bytes : 0);
  void* data = slot.request != nullptr ? slot.request->output : dropped.data();
  const Span span(Stage::kReduce, "broadcast", bytes);
  return transport_->Broadcast(data, bytes, slot.signature.root, deadline);
}

}  // namespace tfmpi
