#include "tensorflow_patches/core/recovery/recoverable_reduction.h"

#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <utility>

#include "tensorflow_patches/core/memory/leaked_memory.h"
#include "tensorflow_patches/core/observability/timeline.h"
#include "tensorflow_patches/core/reduction/fusion.h"

namespace tfmpi {
namespace {

bool IsWeighted(const Signature& signature) {
  return IsGradient(signature) && (signature.weighted || GathersRows(signature.kind));
}

double WeightOf(const FusionEntry& entry) {
  if (entry.request == nullptr) return 0;
  if (entry.request->rows != nullptr) return entry.request->rows->Weight();
  return entry.request->scale * entry.request->applied_weight;
}

}  // namespace

Status RecoverableReduction::Execute(const Response& response,
                                     const std::vector<FusionEntry>& entries, TimePoint deadline) {
  Unit unit;
  bool proves_all_started = false;
  Status status = Collect(response, entries, deadline, &unit.result, &proves_all_started);
  if (!status.ok()) {
    KeepUntilExit(std::move(unit.result.memory));
    return status;
  }
  status = Deliver(response, entries, transport_->topology().rank, unit.result,
                   /*collected_here=*/true);
  unit.what.responses = {response};
  history_.Add(std::move(unit), proves_all_started);
  return status;
}

Status RecoverableReduction::TrimHistory(TimePoint deadline) {
  constexpr size_t kMaxBytes = size_t{64} << 20;
  constexpr uint64_t kMaxUnits = 1000;
  if (history_.bytes() <= kMaxBytes && history_.done() - history_.deleted() <= kMaxUnits) {
    return Status();
  }
  // Every rank takes part in this allreduce, so then all ranks have executed all units.
  int64_t one = 1;
  const Status status =
      transport_->Allreduce(&one, &one, {1, DataType::kInt64, ReduceOp::kSum, 1}, deadline);
  if (status.ok()) history_.Forget();
  return status;
}

Status RecoverableReduction::Collect(const Response& response,
                                     const std::vector<FusionEntry>& entries, TimePoint deadline,
                                     Result* result, bool* proves_all_started) {
  const FusionEntry& first = entries.front();
  *proves_all_started = false;
  switch (first.signature.kind) {
    case OpKind::kAllreduce: {
      const Status status = Allreduce(entries, response.contributors, deadline, result);
      *proves_all_started = result->bytes != 0;
      return status;
    }
    case OpKind::kAllgather:
    case OpKind::kSparseAllgather:
      return Gather(first, response, deadline, result);
    case OpKind::kBroadcast:
      return Broadcast(first, deadline, result);
    case OpKind::kBarrier:
      return Status();
  }
  return Status(Code::kInternal, "unknown operation");
}

Status RecoverableReduction::Factors(const std::vector<FusionEntry>& entries, int contributors,
                                     TimePoint deadline, std::vector<double>* factors) {
  // The average is later divided by `contributors`; the factors turn that into a division by the
  // sum of the weights. If that differs by rounding errors only, a factor of 1 keeps every bit.
  constexpr double kWeightTolerance = 1e-5;
  factors->assign(entries.size(), 1.0);
  if (!divides_by_weights_) return Status();
  bool any = false;
  for (const FusionEntry& entry : entries) any |= IsWeighted(entry.signature);
  if (!any) return Status();
  auto memory = std::make_unique<std::vector<double>>();  // on the heap, for KeepUntilExit
  std::vector<double>& weights = *memory;
  for (const FusionEntry& entry : entries) weights.push_back(WeightOf(entry));
  const Status status =
      transport_->Allreduce(weights.data(), weights.data(),
                            {weights.size(), DataType::kFloat64, ReduceOp::kSum, 1}, deadline);
  if (!status.ok()) {
    KeepUntilExit(std::move(memory));
    return status;
  }
  for (size_t i = 0; i < weights.size(); ++i) {
    const double factor = contributors / weights[i];
    const bool needed = IsWeighted(entries[i].signature) && std::isfinite(factor) &&
                        std::abs(factor - 1) > kWeightTolerance;
    if (needed) (*factors)[i] = factor;
  }
  return status;
}

Status RecoverableReduction::Allreduce(const std::vector<FusionEntry>& entries, int contributors,
                                       TimePoint deadline, Result* result) {
  size_t bytes = 0;
  for (const FusionEntry& entry : entries) {
    bytes += WireBytes(entry.signature.dtype, Count(entry.signature));
  }
  if (bytes == 0) return Status();
  std::vector<double> factors;
  TFMPI_RETURN_IF_NOT_OK(Factors(entries, contributors, deadline, &factors));
  *result = history_.NewResult(bytes);
  char* const buffer = result->memory.get();
  Fusion::PackAll(entries, buffer, bytes, factors.data());
  const Signature& common = Common(entries);
  const DataType wire = WireType(common.dtype);
  const double scale = common.op == ReduceOp::kAverage ? 1.0 / contributors : 1.0;
  const Span span(Stage::kReduce, "", bytes);
  const Reduction reduction = {bytes / SizeOf(wire), wire, WireOp(common.op), scale,
                               MayRound(common)};
  return transport_->Allreduce(buffer, buffer, reduction, deadline);
}

Status RecoverableReduction::Gather(const FusionEntry& entry, const Response& response,
                                    TimePoint deadline, Result* result) {
  const std::vector<int64_t>& rows = response.items.front().rows;
  if (IsBeyondLimit(entry.signature, rows)) return Status();
  const std::vector<size_t> bytes = BytesOfRows(rows, RowBytes(entry.signature));
  const int rank = transport_->topology().rank;
  RowAccess* const access = entry.request != nullptr ? entry.request->rows : nullptr;
  std::vector<double> factors;
  TFMPI_RETURN_IF_NOT_OK(Factors({entry}, response.contributors, deadline, &factors));
  *result = history_.NewResult(std::accumulate(bytes.begin(), bytes.end(), size_t{0}));
  char* const all = result->memory.get();
  const void* own = entry.request != nullptr ? entry.request->input : nullptr;
  if (access != nullptr) {
    access->Prepare(rank, factors.front());
    access->Begin(rows, response.contributors);
    char* const place = all + std::accumulate(bytes.begin(), bytes.begin() + rank, size_t{0});
    if (rows[rank] != 0) access->Put(0, rows[rank], place);
    own = place;
  }
  if (result->bytes == 0) return Status();
  const Span span(Stage::kReduce, "allgather", result->bytes);
  return transport_->Allgather(own, all, bytes, deadline);
}

Status RecoverableReduction::Broadcast(const FusionEntry& entry, TimePoint deadline,
                                       Result* result) {
  const Signature& signature = entry.signature;
  const size_t bytes = Count(signature) * SizeOf(signature.dtype);
  if (bytes == 0) return Status();
  *result = history_.NewResult(bytes);
  if (transport_->topology().rank == signature.root && entry.request != nullptr) {
    std::memcpy(result->memory.get(), entry.request->output, bytes);
  }
  const Span span(Stage::kReduce, "broadcast", bytes);
  return transport_->Broadcast(result->memory.get(), bytes, signature.root, deadline);
}

Status RecoverableReduction::Deliver(const Response& response,
                                     const std::vector<FusionEntry>& entries, int rank,
                                     const Result& result, bool collected_here) {
  const FusionEntry& first = entries.front();
  const Signature& signature = first.signature;
  const char* const data = result.memory.get();
  if (signature.kind == OpKind::kAllreduce) {
    if (result.bytes != 0) Fusion::UnpackAll(entries, data, result.bytes);
    return Status();
  }
  if (first.request == nullptr) return Status();
  Request& request = *first.request;
  if (signature.kind == OpKind::kBroadcast) {
    if (result.bytes != 0 && rank != signature.root) {
      std::memcpy(request.output, data, result.bytes);
    }
    return Status();
  }
  if (!GathersRows(signature.kind)) return Status();
  const std::vector<int64_t>& rows = response.items.front().rows;
  if (request.rows == nullptr) {
    void* const out = request.allocate(rows);
    if (result.bytes == 0) return Status();
    if (out == nullptr) {
      return Status(Code::kInternal,
                    "no memory for the result of allgather '" + request.name + "'");
    }
    std::memcpy(out, data, result.bytes);
    return Status();
  }
  if (IsBeyondLimit(signature, rows)) return Status();
  if (!collected_here) {
    request.rows->Prepare(rank, 1);
    request.rows->Begin(rows, response.contributors);
  }
  const std::vector<size_t> bytes = BytesOfRows(rows, RowBytes(signature));
  const char* from = data;
  for (size_t r = 0; r < rows.size(); from += bytes[r], ++r) {
    const bool own = collected_here && static_cast<int>(r) == rank;
    if (rows[r] != 0 && !own) request.rows->Take(static_cast<int>(r), 0, rows[r], from);
  }
  return Status();
}

}  // namespace tfmpi
