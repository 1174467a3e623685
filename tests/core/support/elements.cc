#include "tests/core/support/elements.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace tfmpi {
namespace {

uint16_t Encode(double value, int exponent_bits, int fraction_bits) {
  const int sign = std::signbit(value) ? 0x8000 : 0;
  const int infinity = ((1 << exponent_bits) - 1) << fraction_bits;
  if (std::isnan(value)) return static_cast<uint16_t>(sign | infinity | (1 << (fraction_bits - 1)));
  if (std::isinf(value)) return static_cast<uint16_t>(sign | infinity);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  int exponent = 0;
  std::frexp(value, &exponent);  // |value| in [2^(exponent-1), 2^exponent)
  exponent = value == 0 ? 1 - bias : std::max(exponent - 1, 1 - bias);
  // In units of the last place; nearbyint rounds to nearest even. A normal number has
  // 2^fraction_bits of them or more, which adds one to its exponent field.
  const double units = std::nearbyint(std::ldexp(std::fabs(value), fraction_bits - exponent));
  const double bits = units + std::ldexp(exponent + bias - 1, fraction_bits);
  return static_cast<uint16_t>(sign | static_cast<int>(std::min<double>(bits, infinity)));
}

double Decode(uint16_t bits, int exponent_bits, int fraction_bits) {
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  const int field = (bits & 0x7fff) >> fraction_bits;
  const int fraction = bits & ((1 << fraction_bits) - 1);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  if (field == (1 << exponent_bits) - 1) {
    if (fraction != 0) return std::copysign(std::numeric_limits<double>::quiet_NaN(), sign);
    return sign * std::numeric_limits<double>::infinity();
  }
  if (field == 0) return sign * std::ldexp(fraction, 1 - bias - fraction_bits);
  return sign * std::ldexp((1 << fraction_bits) + fraction, field - bias - fraction_bits);
}

template <typename T>
double Get(const void* data, size_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(data) + index * sizeof(T), sizeof(T));
  return static_cast<double>(value);
}

template <typename T>
void Set(void* data, size_t index, double from) {
  const T value = static_cast<T>(from);
  std::memcpy(static_cast<char*>(data) + index * sizeof(T), &value, sizeof(T));
}

}  // namespace

uint16_t EncodeFloat16(double value) { return Encode(value, 5, 10); }
uint16_t EncodeBfloat16(double value) { return Encode(value, 8, 7); }
double DecodeFloat16(uint16_t bits) { return Decode(bits, 5, 10); }
double DecodeBfloat16(uint16_t bits) { return Decode(bits, 8, 7); }

double GetComponent(DataType type, const void* data, size_t index) {
  switch (type) {
    case DataType::kFloat16:
      return DecodeFloat16(static_cast<uint16_t>(Get<uint16_t>(data, index)));
    case DataType::kBfloat16:
      return DecodeBfloat16(static_cast<uint16_t>(Get<uint16_t>(data, index)));
    case DataType::kFloat32:
    case DataType::kComplex64:
      return Get<float>(data, index);
    case DataType::kFloat64:
    case DataType::kComplex128:
      return Get<double>(data, index);
    case DataType::kInt8:
      return Get<int8_t>(data, index);
    case DataType::kInt16:
      return Get<int16_t>(data, index);
    case DataType::kInt32:
      return Get<int32_t>(data, index);
    case DataType::kInt64:
      return Get<int64_t>(data, index);
    case DataType::kUint8:
    case DataType::kBool:
      return Get<uint8_t>(data, index);
    case DataType::kUint16:
      return Get<uint16_t>(data, index);
    case DataType::kUint32:
      return Get<uint32_t>(data, index);
    case DataType::kUint64:
      return Get<uint64_t>(data, index);
  }
  return std::numeric_limits<double>::quiet_NaN();
}

void SetComponent(DataType type, void* data, size_t index, double value) {
  switch (type) {
    case DataType::kFloat16:
      return Set<uint16_t>(data, index, EncodeFloat16(value));
    case DataType::kBfloat16:
      return Set<uint16_t>(data, index, EncodeBfloat16(value));
    case DataType::kFloat32:
    case DataType::kComplex64:
      return Set<float>(data, index, value);
    case DataType::kFloat64:
    case DataType::kComplex128:
      return Set<double>(data, index, value);
    case DataType::kInt8:
      return Set<int8_t>(data, index, value);
    case DataType::kInt16:
      return Set<int16_t>(data, index, value);
    case DataType::kInt32:
      return Set<int32_t>(data, index, value);
    case DataType::kInt64:
      return Set<int64_t>(data, index, value);
    case DataType::kUint8:
      return Set<uint8_t>(data, index, value);
    case DataType::kBool:
      return Set<uint8_t>(data, index, value != 0);
    case DataType::kUint16:
      return Set<uint16_t>(data, index, value);
    case DataType::kUint32:
      return Set<uint32_t>(data, index, value);
    case DataType::kUint64:
      return Set<uint64_t>(data, index, value);
  }
}

bool IsUnsigned(DataType type) {
  return type == DataType::kUint8 || type == DataType::kUint16 || type == DataType::kUint32 ||
         type == DataType::kUint64 || type == DataType::kBool;
}

double Epsilon(DataType type) {
  if (type == DataType::kFloat16) return 0x1p-10;
  if (type == DataType::kBfloat16) return 0x1p-7;
  if (!IsFloating(type)) return 0;
  return WireType(type) == DataType::kFloat32 ? 0x1p-23 : 0x1p-52;
}

}  // namespace tfmpi
