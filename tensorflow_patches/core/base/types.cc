#include "tensorflow_patches/core/base/types.h"

#include <functional>
#include <numeric>

namespace tfmpi {
namespace {

struct TypeInfo {
  const char* name;
  size_t size;
  DataType wire;
  bool floating;
  bool complex;
};

constexpr TypeInfo kTypes[kNumDataTypes] = {
    {"float16", 2, DataType::kFloat32, true, false},
    {"bfloat16", 2, DataType::kFloat32, true, false},
    {"float32", 4, DataType::kFloat32, true, false},
    {"float64", 8, DataType::kFloat64, true, false},
    {"complex64", 8, DataType::kFloat32, true, true},
    {"complex128", 16, DataType::kFloat64, true, true},
    {"int8", 1, DataType::kInt8, false, false},
    {"int16", 2, DataType::kInt16, false, false},
    {"int32", 4, DataType::kInt32, false, false},
    {"int64", 8, DataType::kInt64, false, false},
    {"uint8", 1, DataType::kUint8, false, false},
    {"uint16", 2, DataType::kUint16, false, false},
    {"uint32", 4, DataType::kUint32, false, false},
    {"uint64", 8, DataType::kUint64, false, false},
    {"bool", 1, DataType::kBool, false, false},
};

const TypeInfo& Info(DataType type) { return kTypes[static_cast<size_t>(type)]; }

}  // namespace

const char* Name(DataType type) { return Info(type).name; }

const char* Name(ReduceOp op) {
  constexpr const char* kNames[kNumReduceOps] = {"average", "sum",     "min",
                                                 "max",     "product", "plain sum"};
  return kNames[static_cast<size_t>(op)];
}

const char* Name(OpKind kind) {
  constexpr const char* kNames[kNumOpKinds] = {"allreduce", "allgather", "broadcast", "barrier",
                                               "sparse allgather"};
  return kNames[static_cast<size_t>(kind)];
}

size_t SizeOf(DataType type) { return Info(type).size; }
bool IsFloating(DataType type) { return Info(type).floating; }
bool IsComplex(DataType type) { return Info(type).complex; }
DataType WireType(DataType type) { return Info(type).wire; }
size_t WireElements(DataType type) { return Info(type).complex ? 2 : 1; }

size_t PaddedElements(DataType type, size_t count) {
  constexpr size_t kLineBytes = 64;
  const size_t line = kLineBytes / WireBytes(type, 1);
  return (count + line - 1) / line * line;
}

int64_t NumElements(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<int64_t>());
}

}  // namespace tfmpi
