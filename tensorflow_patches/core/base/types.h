// Element types, reductions and operations, with their names and sizes. Their values are stable,
// because the C API contains them.

#ifndef TFMPI_CORE_BASE_TYPES_H_
#define TFMPI_CORE_BASE_TYPES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tensorflow_patches/core/base/clock.h"  // TimePoint, for files that include this one

namespace tfmpi {

enum class DataType : uint8_t {
  kFloat16 = 0,
  kBfloat16 = 1,
  kFloat32 = 2,
  kFloat64 = 3,
  kComplex64 = 4,
  kComplex128 = 5,
  kInt8 = 6,
  kInt16 = 7,
  kInt32 = 8,
  kInt64 = 9,
  kUint8 = 10,
  kUint16 = 11,
  kUint32 = 12,
  kUint64 = 13,
  kBool = 14,
};
inline constexpr int kNumDataTypes = 15;

// kAverage is a sum divided by the number of ranks that contributed. kPlainSum is a sum by
// Transport::PlainAllreduce; on GPUs and with TF_MPI_FAULT=shrink it is kSum.
enum class ReduceOp : uint8_t {
  kAverage = 0,
  kSum = 1,
  kMin = 2,
  kMax = 3,
  kProduct = 4,
  kPlainSum = 5,
};
inline constexpr int kNumReduceOps = 6;

// kSparseAllgather gathers rows, usually those of a sparse gradient, through RowAccess.
enum class OpKind : uint8_t {
  kAllreduce = 0,
  kAllgather = 1,
  kBroadcast = 2,
  kBarrier = 3,
  kSparseAllgather = 4,
};
inline constexpr int kNumOpKinds = 5;
// Whether the ranks may differ in the first dimension.
inline bool GathersRows(OpKind kind) {
  return kind == OpKind::kAllgather || kind == OpKind::kSparseAllgather;
}

const char* Name(DataType type);
const char* Name(ReduceOp op);
const char* Name(OpKind kind);

size_t SizeOf(DataType type);
bool IsFloating(DataType type);  // real or complex
bool IsComplex(DataType type);

// The type in which elements of `type` are reduced between ranks: float32 for half and bfloat16,
// two reals for a complex number, the type itself for all others.
DataType WireType(DataType type);
// How many wire elements one element of `type` becomes: 2 for complex types, else 1.
size_t WireElements(DataType type);

// The type of a complex number's components; other types unchanged.
inline DataType RealOf(DataType type) { return IsComplex(type) ? WireType(type) : type; }
// The size of `count` elements in wire form.
inline size_t WireBytes(DataType type, size_t count) {
  return count * WireElements(type) * SizeOf(WireType(type));
}

// The parts of a request (Signature::parts) each begin on a cache line of its buffer. This is the
// number of elements that a part of `count` elements occupies there.
size_t PaddedElements(DataType type, size_t count);

using Shape = std::vector<int64_t>;
int64_t NumElements(const Shape& shape);

}  // namespace tfmpi

#endif  // TFMPI_CORE_BASE_TYPES_H_
