// The data plane: allreduce, allgather and broadcast.

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <vector>

#include "tensorflow_patches/core/base/sizes.h"
#include "tensorflow_patches/core/base/types.h"
#include "tensorflow_patches/core/memory/leaked_memory.h"
#include "tensorflow_patches/core/transport/mpi/mpi_state.h"
#include "tensorflow_patches/core/transport/mpi/pairwise_allreduce.h"

namespace tfmpi::mpi {
namespace {

MPI_Datatype ToMpi(DataType type) {
  switch (type) {
    case DataType::kFloat32:
      return MPI_FLOAT;
    case DataType::kFloat64:
      return MPI_DOUBLE;
    case DataType::kInt8:
      return MPI_INT8_T;
    case DataType::kInt16:
      return MPI_INT16_T;
    case DataType::kInt32:
      return MPI_INT32_T;
    case DataType::kInt64:
      return MPI_INT64_T;
    case DataType::kUint16:
      return MPI_UINT16_T;
    case DataType::kUint32:
      return MPI_UINT32_T;
    case DataType::kUint64:
      return MPI_UINT64_T;
    default:
      return MPI_UINT8_T;
  }
}

MPI_Op ToMpi(ReduceOp op) {
  switch (op) {
    case ReduceOp::kMin:
      return MPI_MIN;
    case ReduceOp::kMax:
      return MPI_MAX;
    case ReduceOp::kProduct:
      return MPI_PROD;
    default:
      return MPI_SUM;
  }
}

// MPI_IN_PLACE must be passed by all ranks or by none. Some ranks already have their input in `out`
// (fusion.cc packs it there), so the others copy theirs.
void MoveInput(const void* in, void* out, size_t bytes) {
  if (in != out) std::memcpy(out, in, bytes);
}

// For small data, in one call: MPI's trees take fewer messages than a PairwiseAllreduce.
int AllreduceSmall(const Group& group, const void* in, void* out, const Reduction& reduction,
                   TimePoint deadline, char* error) {
  MoveInput(in, out, reduction.count * SizeOf(reduction.type));
  MPI_Request request = MPI_REQUEST_NULL;
  TFMPI_RETURN_IF_ERROR(
      "MPI_Iallreduce",
      MPI_Iallreduce(MPI_IN_PLACE, out, static_cast<int>(reduction.count), ToMpi(reduction.type),
                     ToMpi(reduction.op), group.comm, &request));
  const int result = Wait(&request, deadline, "MPI_Iallreduce", error);
  // Scales: reduction.type is a wire type, so there is nothing to convert.
  if (result == kTfMpiOk) Unpack(reduction.type, out, out, reduction.count, reduction.scale);
  return result;
}

// In chunks of equal size, several of them in flight.
int AllreducePairwise(const Group& group, const char* in, char* out, const Reduction& reduction,
                      TimePoint deadline, char* error) {
  const size_t element = SizeOf(reduction.type);
  const size_t chunk_bytes = std::max(kMpiChunkBytes, kMinMpiShare * group.size);
  const size_t chunks = (reduction.count * element + chunk_bytes - 1) / chunk_bytes;
  PairwiseAllreduce* const exchanges = GetState().exchanges;
  size_t started = 0;
  size_t ended = 0;
  Backoff backoff;
  while (ended < chunks) {
    bool moved = false;
    // In order, so that all ranks use the same exchange for a chunk.
    if (started < chunks && !exchanges[started % kChunksInFlight].busy()) {
      const size_t first = reduction.count * started / chunks;
      Reduction chunk = reduction;
      chunk.count = reduction.count * (started + 1) / chunks - first;
      TFMPI_RETURN_IF_ERROR("starting an exchange",
                            exchanges[started++ % kChunksInFlight].Start(
                                group, chunk, in + first * element, out + first * element));
      moved = true;
    }
    for (size_t i = 0; i < kChunksInFlight; ++i) {
      if (!exchanges[i].busy()) continue;
      TFMPI_RETURN_IF_ERROR("an exchange", exchanges[i].Advance(&moved));
      ended += !exchanges[i].busy();
    }
    if (moved) {
      backoff = Backoff();
    } else if (Clock::now() >= deadline) {
      return TimedOut("an exchange of gradients", error);
    } else {
      backoff.Pause();
    }
  }
  return kTfMpiOk;
}

Reduction ToReduction(const TfMpiReduction& terms) {
  return {terms.count, static_cast<DataType>(terms.type), static_cast<ReduceOp>(terms.op),
          terms.scale};
}

// For large data: the counts and displacements of MPI_Iallgatherv are ints.
int AllgatherByBroadcasts(const void* in, char* out, const size_t* bytes, TimePoint deadline,
                          char* error) {
  State& state = GetState();
  for (int r = 0; r < state.data.size; out += bytes[r], ++r) {
    if (r == state.data.rank && bytes[r] != 0) std::memmove(out, in, bytes[r]);
    const double left = std::chrono::duration<double>(deadline - Clock::now()).count();
    const int result = Broadcast(out, bytes[r], r, left, error);
    if (result != kTfMpiOk) return result;
  }
  return kTfMpiOk;
}

}  // namespace

int Allreduce(int32_t over, const void* in, void* out, const TfMpiReduction* terms, double seconds,
              char* error) {
  const Group& group = over == kTfMpiRail ? GetState().rail : GetState().data;
  const Reduction reduction = ToReduction(*terms);
  const size_t bytes = reduction.count * SizeOf(reduction.type);
  const TimePoint deadline = DeadlineIn(seconds);
  if (group.size == 1) {
    Reduce(reduction, &in, 1, reduction.count, out, nullptr);
    return kTfMpiOk;
  }
  // MPI has no sums of half-precision types, and its maximum of a number and NaN may differ by
  // rank.
  const bool compares = reduction.op == ReduceOp::kMin || reduction.op == ReduceOp::kMax;
  const bool exact = IsWireForm(reduction.type) && !(compares && IsFloating(reduction.type));
  if (exact && bytes < kMinMpiShare * group.size) {
    return AllreduceSmall(group, in, out, reduction, deadline, error);
  }
  return AllreducePairwise(group, static_cast<const char*>(in), static_cast<char*>(out), reduction,
                           deadline, error);
}

int PlainAllreduce(const void* in, void* out, const TfMpiReduction* terms, double seconds,
                   char* error) {
  const Reduction reduction = ToReduction(*terms);
  const Group& group = GetState().data;
  const TimePoint deadline = DeadlineIn(std::max(seconds, 0.0));
  MoveInput(in, out, reduction.count * SizeOf(reduction.type));
  constexpr size_t kMax = size_t{1} << 30;  // MPI's counts are ints
  for (size_t start = 0; start < reduction.count; start += kMax) {
    const size_t offset = start * SizeOf(reduction.type);
    void* const to = static_cast<char*>(out) + offset;
    const int count = static_cast<int>(std::min(kMax, reduction.count - start));
    const MPI_Datatype type = ToMpi(reduction.type);
    const MPI_Op op = ToMpi(reduction.op);
    if (seconds < 0) {
      TFMPI_RETURN_IF_ERROR("MPI_Allreduce",
                            MPI_Allreduce(MPI_IN_PLACE, to, count, type, op, group.comm));
      continue;
    }
    MPI_Request request = MPI_REQUEST_NULL;
    TFMPI_RETURN_IF_ERROR("MPI_Iallreduce",
                          MPI_Iallreduce(MPI_IN_PLACE, to, count, type, op, group.comm, &request));
    if (const int result = Wait(&request, deadline, "MPI_Iallreduce", error); result != kTfMpiOk) {
      return result;
    }
  }
  return kTfMpiOk;
}

// In chunks, because MPI's counts are ints.
int Broadcast(void* data, size_t bytes, int32_t root, double seconds, char* error) {
  State& state = GetState();
  const TimePoint deadline = DeadlineIn(seconds);
  for (size_t start = 0; start < bytes; start += kMpiChunkBytes) {
    MPI_Request request = MPI_REQUEST_NULL;
    TFMPI_RETURN_IF_ERROR("MPI_Ibcast",
                          MPI_Ibcast(static_cast<char*>(data) + start,
                                     static_cast<int>(std::min(kMpiChunkBytes, bytes - start)),
                                     MPI_BYTE, root, state.data.comm, &request));
    if (const int result = Wait(&request, deadline, "MPI_Ibcast", error); result != kTfMpiOk) {
      return result;
    }
  }
  return kTfMpiOk;
}

int Allgather(const void* in, void* out, const size_t* bytes, double seconds, char* error) {
  State& state = GetState();
  const TimePoint deadline = DeadlineIn(seconds);
  // MPI reads these until the operation ends, which may be after this call has timed out.
  auto layout = std::make_unique<std::vector<int>>(2 * state.data.size);
  int* const counts = layout->data();
  int* const offsets = counts + state.data.size;
  size_t total = 0;
  for (int r = 0; r < state.data.size; ++r) {
    counts[r] = static_cast<int>(bytes[r]);
    offsets[r] = static_cast<int>(total);
    total += bytes[r];
  }
  if (total >= (size_t{1} << 30)) {
    return AllgatherByBroadcasts(in, static_cast<char*>(out), bytes, deadline, error);
  }
  char* const own = static_cast<char*>(out) + offsets[state.data.rank];
  if (bytes[state.data.rank] != 0) MoveInput(in, own, bytes[state.data.rank]);
  MPI_Request request = MPI_REQUEST_NULL;
  TFMPI_RETURN_IF_ERROR("MPI_Iallgatherv",
                        MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_BYTE, out, counts, offsets, MPI_BYTE,
                                        state.data.comm, &request));
  const int result = Wait(&request, deadline, "MPI_Iallgatherv", error);
  if (result != kTfMpiOk) KeepUntilExit(std::move(layout));
  return result;
}

}  // namespace tfmpi::mpi
