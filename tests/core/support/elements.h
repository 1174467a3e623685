// Elements of any DataType as doubles, converted by code that shares nothing with
// core/cpu/reduce.cc.

#ifndef TFMPI_TESTS_CORE_SUPPORT_ELEMENTS_H_
#define TFMPI_TESTS_CORE_SUPPORT_ELEMENTS_H_

#include <cstddef>
#include <cstdint>

#include "tensorflow_patches/core/base/types.h"

namespace tfmpi {

inline constexpr DataType kAllTypes[kNumDataTypes] = {
    DataType::kFloat16,   DataType::kBfloat16,   DataType::kFloat32, DataType::kFloat64,
    DataType::kComplex64, DataType::kComplex128, DataType::kInt8,    DataType::kInt16,
    DataType::kInt32,     DataType::kInt64,      DataType::kUint8,   DataType::kUint16,
    DataType::kUint32,    DataType::kUint64,     DataType::kBool};

// IEEE binary16 and bfloat16, by definition: sign, exponent, fraction. Rounds to nearest even.
uint16_t EncodeFloat16(double value);
uint16_t EncodeBfloat16(double value);
double DecodeFloat16(uint16_t bits);
double DecodeBfloat16(uint16_t bits);

// A complex element has two components, every other element one.
double GetComponent(DataType type, const void* data, size_t index);
void SetComponent(DataType type, void* data, size_t index, double value);

bool IsUnsigned(DataType type);  // bool counts as unsigned
// The distance of two neighbours of `type` near 1; 0 for integers.
double Epsilon(DataType type);

}  // namespace tfmpi

#endif  // TFMPI_TESTS_CORE_SUPPORT_ELEMENTS_H_
