// Element types, reductions and operations, with their names and sizes.
//
// Plain enumerations with stable values: they travel in messages and through the C API.

#ifndef TFMPI_CORE_BASE_TYPES_H_
#define TFMPI_CORE_BASE_TYPES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tensorflow_patches/core/base/clock.h"

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

// What a reduction computes. kAverage is a sum divided by the number of ranks that contributed;
// kPlainSum a sum by Transport::PlainAllreduce, where the memory is the host's and no rank may die.
enum class ReduceOp : uint8_t {
  kAverage = 0,
  kSum = 1,
  kMin = 2,
  kMax = 3,
  kProduct = 4,
  kPlainSum = 5,
};
inline constexpr int kNumReduceOps = 6;

// kSparseAllgather is an allgather of rows that are read and written where they lie.
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

// The type in which elements of `type` are summed between ranks: half and bfloat16 in float32, a
// complex number as two reals, everything else as itself.
DataType WireType(DataType type);
// How many wire elements one element of `type` becomes: 2 for complex types, else 1.
size_t WireElements(DataType type);

// Of tensors that travel together each begins on a cache line, on the wire: so many elements of
// `type` does one of `count` take up.
size_t PaddedElements(DataType type, size_t count);

using Shape = std::vector<int64_t>;
int64_t NumElements(const Shape& shape);

}  // namespace tfmpi

#endif  // TFMPI_CORE_BASE_TYPES_H_
