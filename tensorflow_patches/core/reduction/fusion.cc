#include "tensorflow_patches/core/reduction/fusion.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "tensorflow_patches/core/cpu/reduce.h"
#include "tensorflow_patches/core/observability/timeline.h"

namespace tfmpi {
namespace {

void PackOne(const FusionEntry& entry, char* next, double factor) {
  const DataType type = entry.signature.dtype;
  const Request& request = *entry.request;
  const double scale = request.scale * factor;
  if (entry.signature.parts == nullptr) {
    return Pack(type, request.input, next, Count(entry.signature), scale);
  }
  for (size_t i = 0; i < request.parts.size(); ++i) {
    const size_t count = static_cast<size_t>(NumElements(entry.signature.parts->shapes[i]));
    Pack(type, request.parts[i].input, next, count, scale);
    const size_t bytes = WireBytes(type, count);
    const size_t padded = WireBytes(type, PaddedElements(type, count));
    std::memset(next + bytes, 0, padded - bytes);
    next += padded;
  }
}

void UnpackOne(const FusionEntry& entry, const char* next) {
  const DataType type = entry.signature.dtype;
  const Request& request = *entry.request;
  if (entry.signature.parts == nullptr) {
    return Unpack(type, next, request.output, Count(entry.signature), 1);
  }
  if (request.output != nullptr) {
    std::memcpy(request.output, next, WireBytes(type, Count(entry.signature)));
    return;
  }
  for (size_t i = 0; i < request.parts.size(); ++i) {
    const size_t count = static_cast<size_t>(NumElements(entry.signature.parts->shapes[i]));
    Unpack(type, next, request.parts[i].output, count, 1);
    next += WireBytes(type, PaddedElements(type, count));
  }
}

// The rows of a rank that does not take part: it has none and drops the others'.
class DroppedRows : public RowAccess {
 public:
  void Begin(const std::vector<int64_t>&, int) override {}
  void Put(int64_t, int64_t, char*) override {}
  void Take(int, int64_t, int64_t, const char*) override {}
};

}  // namespace

Status Fusion::Reserve(size_t bytes) {
  if (bytes <= buffer_bytes_) return Status();
  buffer_ = NewLineMemory(bytes);
  buffer_bytes_ = buffer_ != nullptr ? bytes : 0;
  if (buffer_ != nullptr) return Status();
  return Status(Code::kUnavailable, "rank " + std::to_string(transport_->topology().rank) +
                                        " has no memory for a buffer of " + std::to_string(bytes) +
                                        " bytes; use fewer ranks per node or more memory");
}

Status Fusion::Allreduce(const std::vector<FusionEntry>& entries, int contributors,
                         TimePoint deadline) {
  const FusionEntry& first = entries.front();
  const double scale = first.signature.op == ReduceOp::kAverage ? 1.0 / contributors : 1.0;
  if (first.signature.on_gpu) return gpus_.Allreduce(entries, contributors, scale, deadline);
  if (entries.size() > 1 || first.signature.parts != nullptr) {
    return ReduceFused(entries, scale, deadline);
  }
  if (Count(first.signature) == 0) return Status();
  if (IsWireForm(first.signature.dtype)) return ReduceInPlace(first, scale, deadline);
  return ReduceInChunks(first, scale, deadline);
}

Status Fusion::ReduceInPlace(const FusionEntry& entry, double scale, TimePoint deadline) {
  const DataType type = entry.signature.dtype;
  const size_t count = Count(entry.signature);
  const void* in = entry.request != nullptr ? entry.request->input : nullptr;
  void* out = entry.request != nullptr ? entry.request->output : nullptr;
  if (entry.request == nullptr) {
    TFMPI_RETURN_IF_NOT_OK(Reserve(count * SizeOf(type)));
    in = out = buffer_.get();
    FillNeutral(WireType(type), entry.signature.op, out, count * WireElements(type));
  } else if (entry.request->scale != 1) {
    const Span span(Stage::kPack, "", count * SizeOf(type));
    Pack(type, in, out, count, entry.request->scale);
    in = out;
  }
  return Reduce(in, out, count * WireElements(type), entry.signature, scale, deadline);
}

Status Fusion::ReduceInChunks(const FusionEntry& entry, double scale, TimePoint deadline) {
  const DataType type = entry.signature.dtype;
  const size_t count = Count(entry.signature);
  const size_t chunk = std::min(count, chunk_bytes_ / WireBytes(type, 1));
  TFMPI_RETURN_IF_NOT_OK(Reserve(WireBytes(type, chunk)));
  char* const buffer = buffer_.get();
  for (size_t start = 0; start < count; start += chunk) {
    const size_t n = std::min(chunk, count - start);
    const size_t offset = start * SizeOf(type);
    if (entry.request != nullptr) {
      const Span span(Stage::kPack, "", n * SizeOf(type));
      Pack(type, static_cast<const char*>(entry.request->input) + offset, buffer, n,
           entry.request->scale);
    } else {
      FillNeutral(WireType(type), entry.signature.op, buffer, n * WireElements(type));
    }
    TFMPI_RETURN_IF_NOT_OK(
        Reduce(buffer, buffer, n * WireElements(type), entry.signature, scale, deadline));
    if (entry.request != nullptr) {
      const Span span(Stage::kUnpack, "", n * SizeOf(type));
      Unpack(type, buffer, static_cast<char*>(entry.request->output) + offset, n, 1);
    }
  }
  return Status();
}

Status Fusion::ReduceFused(const std::vector<FusionEntry>& entries, double scale,
                           TimePoint deadline) {
  size_t bytes = 0;
  for (const FusionEntry& entry : entries)
    bytes += WireBytes(entry.signature.dtype, Count(entry.signature));
  if (bytes == 0) return Status();
  // A request that is alone and has its own memory for the result needs no buffer here.
  const Request* const only = entries.size() == 1 ? entries.front().request : nullptr;
  const bool in_place = only != nullptr && only->output != nullptr;
  if (!in_place) TFMPI_RETURN_IF_NOT_OK(Reserve(bytes));
  char* const buffer = in_place ? static_cast<char*>(only->output) : buffer_.get();
  PackAll(entries, buffer, bytes);
  const Signature& common = Common(entries);
  const size_t count = bytes / SizeOf(WireType(common.dtype));
  const Status status = Reduce(buffer, buffer, count, common, scale, deadline);
  if (status.ok() && !in_place) UnpackAll(entries, buffer, bytes);
  return status;
}

Status Fusion::Reduce(const void* in, void* out, size_t count, const Signature& signature,
                      double scale, TimePoint deadline) {
  const DataType wire = WireType(signature.dtype);
  const Span span(Stage::kReduce, "", count * SizeOf(wire));
  const Reduction reduction = {count, wire, WireOp(signature.op), scale, MayRound(signature)};
  if (signature.op == ReduceOp::kPlainSum) {
    return transport_->PlainAllreduce(in, out, reduction, deadline);
  }
  return transport_->Allreduce(in, out, reduction, deadline);
}

void Fusion::PackAll(const std::vector<FusionEntry>& entries, char* wire, size_t bytes,
                     const double* factors) {
  const Span span(Stage::kPack, "", bytes);
  for (size_t i = 0; i < entries.size(); ++i) {
    const FusionEntry& entry = entries[i];
    const size_t size = WireBytes(entry.signature.dtype, Count(entry.signature));
    if (entry.request == nullptr) {
      const DataType type = WireType(entry.signature.dtype);
      FillNeutral(type, entry.signature.op, wire, size / SizeOf(type));
    } else {
      PackOne(entry, wire, factors != nullptr ? factors[i] : 1);
    }
    wire += size;
  }
}

void Fusion::UnpackAll(const std::vector<FusionEntry>& entries, const char* wire, size_t bytes) {
  const Span span(Stage::kUnpack, "", bytes);
  for (const FusionEntry& entry : entries) {
    if (entry.request != nullptr) UnpackOne(entry, wire);
    wire += WireBytes(entry.signature.dtype, Count(entry.signature));
  }
}

Status Fusion::Allgather(const FusionEntry& entry, const std::vector<int64_t>& rows,
                         TimePoint deadline) {
  const std::vector<size_t> bytes = BytesOfRows(rows, RowBytes(entry.signature));
  const size_t total = std::accumulate(bytes.begin(), bytes.end(), size_t{0});
  const void* in = nullptr;
  void* out = nullptr;
  if (entry.request != nullptr) {
    in = entry.request->input;
    out = entry.request->allocate(rows);
  }
  // If there is no memory for the result, it goes to a temporary buffer, since the peers wait.
  const bool no_memory = entry.request != nullptr && out == nullptr;
  if (out == nullptr) {
    TFMPI_RETURN_IF_NOT_OK(Reserve(total));
    out = buffer_.get();
  }
  if (total != 0) {
    const Span span(Stage::kReduce, "allgather", total);
    TFMPI_RETURN_IF_NOT_OK(transport_->Allgather(in, out, bytes, deadline));
  }
  if (no_memory && total != 0) {
    return Status(Code::kInternal,
                  "no memory for the result of allgather '" + entry.request->name + "'");
  }
  return Status();
}

Status Fusion::SparseAllgather(const FusionEntry& entry, const std::vector<int64_t>& rows,
                               int contributors, TimePoint deadline) {
  // Each rank's caller sees that Begin was not called (GatheredRows::gathered), and chooses another
  // way.
  if (IsBeyondLimit(entry.signature, rows)) return Status();
  const size_t row_bytes = RowBytes(entry.signature);
  DroppedRows dropped;
  RowAccess* const access = entry.request != nullptr ? entry.request->rows : &dropped;
  access->Begin(rows, contributors);
  const auto total = static_cast<size_t>(std::accumulate(rows.begin(), rows.end(), int64_t{0}));
  const Span span(Stage::kReduce, Name(OpKind::kSparseAllgather), row_bytes * total);
  return transport_->SparseAllgather(rows, row_bytes, access, deadline);
}

Status Fusion::Broadcast(const FusionEntry& entry, TimePoint deadline) {
  if (entry.signature.on_gpu) return gpus_.Broadcast(entry, deadline);
  const size_t bytes = Count(entry.signature) * SizeOf(entry.signature.dtype);
  if (bytes == 0) return Status();
  if (entry.request == nullptr) TFMPI_RETURN_IF_NOT_OK(Reserve(bytes));
  void* data = entry.request != nullptr ? entry.request->output : buffer_.get();
  const Span span(Stage::kReduce, "broadcast", bytes);
  return transport_->Broadcast(data, bytes, entry.signature.root, deadline);
}

}  // namespace tfmpi
