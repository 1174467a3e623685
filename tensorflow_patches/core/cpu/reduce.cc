#include "tensorflow_patches/core/cpu/reduce.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

// Compiles a function, with everything it calls, for AVX2 as well; the version is chosen when the
// library is loaded. The wheel runs on every x86-64, whose baseline has few vector instructions for
// many of these types. Both versions give the same bits: AVX2 includes no fused multiply-add. Not
// with a sanitizer, whose runtime is not initialized yet when the version is chosen.
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define TFMPI_FOR_EACH_CPU __attribute__((target_clones("avx2", "default"), flatten))
#else
#define TFMPI_FOR_EACH_CPU
#endif

namespace tfmpi {
namespace {

float FromBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

uint32_t ToBits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

float WidenBfloat16(uint16_t value) { return FromBits(static_cast<uint32_t>(value) << 16); }

uint16_t NarrowBfloat16(float value) {
  const uint32_t bits = ToBits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u)
    return static_cast<uint16_t>((bits >> 16) | 0x40u);  // NaN
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// Written as arithmetic: a conditional expression may become a branch, which prevents
// vectorization.
uint32_t If(bool condition, uint32_t then, uint32_t otherwise) {
  const uint32_t mask = -static_cast<uint32_t>(condition);
  return (then & mask) | (otherwise & ~mask);
}

// These two compute every case, then select one. Magnitudes are signed, since AVX2 has no unsigned
// comparison.
float WidenFloat16(uint16_t value) {
  const uint32_t sign = static_cast<uint32_t>(value & 0x8000u) << 16;
  const int32_t magnitude = value & 0x7fff;
  const uint32_t normal = (static_cast<uint32_t>(magnitude) << 13) + 0x38000000u;
  const uint32_t special = 0x7f800000u | ((static_cast<uint32_t>(magnitude) & 0x3ffu) << 13);
  // Zero and subnormals: magnitude * 2^-24, exact in float32.
  const uint32_t small = ToBits(static_cast<float>(magnitude) * 0x1p-24f);
  const uint32_t finite = If(magnitude < 0x0400, small, normal);
  return FromBits(sign | If(magnitude >= 0x7c00, special, finite));
}

uint16_t NarrowFloat16(float value) {
  const uint32_t bits = ToBits(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const int32_t magnitude = static_cast<int32_t>(bits & 0x7fffffffu);
  // Below 2^-14: adding 2^-1 leaves the subnormal's bits, rounded to nearest even, at the end of
  // the sum's mantissa, whose last digit is worth 2^-24.
  const uint32_t small = ToBits(FromBits(bits & 0x7fffffffu) + 0.5f) - 0x3f000000u;
  // Rebias the exponent and round; a carry goes into the exponent, up to infinity.
  const uint32_t rebiased = (bits & 0x7fffffffu) - 0x38000000u;
  const uint32_t rounded = (rebiased + 0x0fffu + ((bits >> 13) & 1u)) >> 13;
  uint32_t half = If(magnitude < 0x38800000, small, rounded);
  half = If(magnitude >= 0x47800000, 0x7c00u, half);  // 2^16 and more
  half = If(magnitude > 0x7f800000, 0x7e00u, half);   // NaN
  return static_cast<uint16_t>(sign | half);
}

template <typename T>
void ScaleAs(const void* in, void* out, size_t count, double scale) {
  const T factor = static_cast<T>(scale);
  const T* from = static_cast<const T*>(in);
  T* to = static_cast<T*>(out);
  for (size_t i = 0; i < count; ++i) to[i] = from[i] * factor;
}

// The number of elements reduced at a time: their sums stay in the first-level cache.
constexpr size_t kBlock = 1024;

// How an element in memory becomes one that is combined with others (Load), and back (Store).
struct Identity {
  template <typename T>
  static T Load(T value) {
    return value;
  }
  template <typename T>
  static T Store(T value) {
    return value;
  }
};

struct AsFloat16 {
  static float Load(uint16_t value) { return WidenFloat16(value); }
  static uint16_t Store(float value) { return NarrowFloat16(value); }
};

struct AsBfloat16 {
  static float Load(uint16_t value) { return WidenBfloat16(value); }
  static uint16_t Store(float value) { return NarrowBfloat16(value); }
};

// Integers wrap around, as in the processor: the gaps between tensors in a buffer are reduced, too,
// and in C++ signed integers must not overflow.
template <typename T>
using Wraps = std::make_unsigned_t<std::common_type_t<T, unsigned>>;

struct Sum {
  template <typename T>
  static T Of(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(static_cast<Wraps<T>>(a) + static_cast<Wraps<T>>(b));
    } else {
      return static_cast<T>(a + b);
    }
  }
};

template <typename T>
bool IsNan([[maybe_unused]] T value) {
  if constexpr (std::is_floating_point_v<T>) {
    return std::isnan(value);
  } else {
    return false;
  }
}

// The result is NaN if any source is. Not ||, which may become a branch: see If.
struct Min {
  template <typename T>
  static T Of(T a, T b) {
    return (IsNan(b) | (b < a)) ? b : a;
  }
};

struct Max {
  template <typename T>
  static T Of(T a, T b) {
    return (IsNan(b) | (a < b)) ? b : a;
  }
};

struct Product {
  template <typename T>
  static T Of(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(static_cast<Wraps<T>>(a) * static_cast<Wraps<T>>(b));
    } else {
      return static_cast<T>(a * b);
    }
  }
};

// In the functions below, T is the type in memory, A the type of the partial results, and Form
// Identity, AsFloat16 or AsBfloat16. ivdep: an iteration reads no element that an earlier one has
// written, although a source may be `out`.

// Combines `partial` and the last source, if there is one, into the result.
template <typename Form, typename Op, typename T, typename A, typename Finish>
void Write(const A* partial, const T* last, size_t length, const Finish& finish, T* to) {
  if (last == nullptr) {
#pragma GCC ivdep
    for (size_t i = 0; i < length; ++i) to[i] = static_cast<T>(Form::Store(finish(partial[i])));
  } else {
#pragma GCC ivdep
    for (size_t i = 0; i < length; ++i) {
      const A sum = Op::Of(partial[i], A(Form::Load(last[i])));
      to[i] = static_cast<T>(Form::Store(finish(sum)));
    }
  }
}

// Makes one pass over each block per source; the first source needs its own pass only if it is
// widened.
template <typename T, typename A, typename Form, typename Op>
void ReduceAs(const void* const* sources, int n, size_t count, double scale, T* out, T* copy) {
  const A factor = static_cast<A>(scale);
  A sums[kBlock];
  for (size_t start = 0; start < count; start += kBlock) {
    const size_t length = count - start < kBlock ? count - start : kBlock;
    const auto source = [&](int r) { return static_cast<const T*>(sources[r]) + start; };
    const T* const first = source(0);
    const A* partial = sums;  // the result of the sources so far
    if constexpr (std::is_same_v<Form, Identity>) {
      partial = first;
    } else {
      for (size_t i = 0; i < length; ++i) sums[i] = Form::Load(first[i]);
    }
    for (int r = 1; r < n - 1; ++r) {
      const T* const next = source(r);
#pragma GCC ivdep
      for (size_t i = 0; i < length; ++i) sums[i] = Op::Of(partial[i], A(Form::Load(next[i])));
      partial = sums;
    }
    const T* const last = n > 1 ? source(n - 1) : nullptr;
    T* const to = out + start;
    if (scale == 1) {
      Write<Form, Op>(
          partial, last, length, [](A sum) { return sum; }, to);
    } else {
      Write<Form, Op>(
          partial, last, length, [factor](A sum) { return static_cast<A>(sum * factor); }, to);
    }
    if (copy != nullptr) std::memcpy(copy + start, to, length * sizeof(T));
  }
}

template <typename T, typename A = T, typename Form = Identity>
void ReduceOf(const Reduction& reduction, const void* const* sources, int n, size_t count,
              void* out, void* copy) {
  T* const to = static_cast<T*>(out);
  T* const also = static_cast<T*>(copy);
  switch (reduction.op) {
    case ReduceOp::kMin:
      return ReduceAs<T, A, Form, Min>(sources, n, count, reduction.scale, to, also);
    case ReduceOp::kMax:
      return ReduceAs<T, A, Form, Max>(sources, n, count, reduction.scale, to, also);
    case ReduceOp::kProduct:
      return ReduceAs<T, A, Form, Product>(sources, n, count, reduction.scale, to, also);
    default:
      return ReduceAs<T, A, Form, Sum>(sources, n, count, reduction.scale, to, also);
  }
}

}  // namespace

bool IsWireForm(DataType type) { return type != DataType::kFloat16 && type != DataType::kBfloat16; }

TFMPI_FOR_EACH_CPU
void Pack(DataType type, const void* in, void* wire, size_t count, double scale) {
  if (scale == 0) {
    if (count != 0) std::memset(wire, 0, WireBytes(type, count));
    return;
  }
  if (IsWireForm(type)) return Unpack(type, in, wire, count, scale);
  const float factor = static_cast<float>(scale);
  const uint16_t* from = static_cast<const uint16_t*>(in);
  float* to = static_cast<float*>(wire);
  if (type == DataType::kBfloat16) {
    for (size_t i = 0; i < count; ++i) to[i] = WidenBfloat16(from[i]) * factor;
  } else {
    for (size_t i = 0; i < count; ++i) to[i] = WidenFloat16(from[i]) * factor;
  }
}

TFMPI_FOR_EACH_CPU
void Unpack(DataType type, const void* wire, void* out, size_t count, double scale) {
  const size_t elements = count * WireElements(type);
  if (IsWireForm(type)) {
    if (scale != 1 && WireType(type) == DataType::kFloat32) {
      ScaleAs<float>(wire, out, elements, scale);
    } else if (scale != 1 && WireType(type) == DataType::kFloat64) {
      ScaleAs<double>(wire, out, elements, scale);
    } else if (wire != out && count != 0) {
      std::memcpy(out, wire, count * SizeOf(type));
    }
    return;
  }
  const float factor = static_cast<float>(scale);
  const float* from = static_cast<const float*>(wire);
  uint16_t* to = static_cast<uint16_t*>(out);
  if (type == DataType::kBfloat16) {
    for (size_t i = 0; i < count; ++i) to[i] = NarrowBfloat16(from[i] * factor);
  } else {
    for (size_t i = 0; i < count; ++i) to[i] = NarrowFloat16(from[i] * factor);
  }
}

TFMPI_FOR_EACH_CPU
void Reduce(const Reduction& reduction, const void* const* sources, int n, size_t count, void* out,
            void* copy) {
  switch (reduction.type) {
    case DataType::kFloat32:
      return ReduceOf<float>(reduction, sources, n, count, out, copy);
    case DataType::kFloat64:
      return ReduceOf<double>(reduction, sources, n, count, out, copy);
    case DataType::kFloat16:
      return ReduceOf<uint16_t, float, AsFloat16>(reduction, sources, n, count, out, copy);
    case DataType::kBfloat16:
      return ReduceOf<uint16_t, float, AsBfloat16>(reduction, sources, n, count, out, copy);
    case DataType::kInt8:
      return ReduceOf<int8_t>(reduction, sources, n, count, out, copy);
    case DataType::kInt16:
      return ReduceOf<int16_t>(reduction, sources, n, count, out, copy);
    case DataType::kInt32:
      return ReduceOf<int32_t>(reduction, sources, n, count, out, copy);
    case DataType::kInt64:
      return ReduceOf<int64_t>(reduction, sources, n, count, out, copy);
    case DataType::kUint16:
      return ReduceOf<uint16_t>(reduction, sources, n, count, out, copy);
    case DataType::kUint32:
      return ReduceOf<uint32_t>(reduction, sources, n, count, out, copy);
    case DataType::kUint64:
      return ReduceOf<uint64_t>(reduction, sources, n, count, out, copy);
    default:
      return ReduceOf<uint8_t>(reduction, sources, n, count, out, copy);
  }
}

namespace {

template <typename T>
void FillAs(ReduceOp op, void* data, size_t count) {
  using Limits = std::numeric_limits<T>;
  constexpr bool kInfinite = Limits::has_infinity;
  T value = 0;
  if (op == ReduceOp::kProduct) value = 1;
  if (op == ReduceOp::kMin) value = kInfinite ? Limits::infinity() : Limits::max();
  if (op == ReduceOp::kMax) value = kInfinite ? -Limits::infinity() : Limits::lowest();
  std::fill_n(static_cast<T*>(data), count, value);
}

}  // namespace

void FillNeutral(DataType type, ReduceOp op, void* data, size_t count) {
  switch (type) {
    case DataType::kFloat32:
      return FillAs<float>(op, data, count);
    case DataType::kFloat64:
      return FillAs<double>(op, data, count);
    case DataType::kInt8:
      return FillAs<int8_t>(op, data, count);
    case DataType::kInt16:
      return FillAs<int16_t>(op, data, count);
    case DataType::kInt32:
      return FillAs<int32_t>(op, data, count);
    case DataType::kInt64:
      return FillAs<int64_t>(op, data, count);
    case DataType::kUint8:
      return FillAs<uint8_t>(op, data, count);
    case DataType::kUint16:
      return FillAs<uint16_t>(op, data, count);
    case DataType::kUint32:
      return FillAs<uint32_t>(op, data, count);
    case DataType::kUint64:
      return FillAs<uint64_t>(op, data, count);
    default:  // bool, which has no reductions
      std::memset(data, 0, count * SizeOf(type));
  }
}

// Four independent chains: a single one would mostly wait for its multiplication.
uint64_t Fingerprint(const void* data, size_t bytes) {
  constexpr size_t kLanes = 4;
  constexpr uint64_t kSeed = 0x9e3779b97f4a7c15u;
  const char* next = static_cast<const char*>(data);
  uint64_t hash[kLanes] = {kSeed ^ bytes, kSeed, 2 * kSeed, 3 * kSeed};
  uint64_t any = 0;
  const auto mix = [&any](uint64_t so_far, uint64_t word) {
    any |= word;
    so_far = (so_far ^ word) * 0xff51afd7ed558ccdu;
    return so_far ^ so_far >> 32;
  };
  for (; bytes >= sizeof hash; bytes -= sizeof hash, next += sizeof hash) {
    uint64_t words[kLanes];
    std::memcpy(words, next, sizeof words);
    for (size_t lane = 0; lane < kLanes; ++lane) hash[lane] = mix(hash[lane], words[lane]);
  }
  while (bytes != 0) {
    uint64_t word = 0;
    const size_t step = std::min(bytes, sizeof word);
    std::memcpy(&word, next, step);
    hash[0] = mix(hash[0], word);
    next += step;
    bytes -= step;
  }
  if (any == 0) return 0;
  for (size_t lane = 1; lane < kLanes; ++lane) hash[0] = mix(hash[0], hash[lane]);
  return hash[0] == 0 ? 1 : hash[0];
}

}  // namespace tfmpi
