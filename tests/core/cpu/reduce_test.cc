// Pack, Unpack, Scale and Fingerprint against arithmetic in double that shares no code with them.

#include "tensorflow_patches/core/cpu/reduce.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "tests/core/support/elements.h"

namespace tfmpi {
namespace {

constexpr uint32_t kAllHalves = 1 << 16;

uint32_t Bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

float FromBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

struct Format {
  DataType type;
  double (*decode)(uint16_t);
  uint16_t (*encode)(double);
};
const Format kFormats[] = {{DataType::kFloat16, DecodeFloat16, EncodeFloat16},
                           {DataType::kBfloat16, DecodeBfloat16, EncodeBfloat16}};

std::vector<uint16_t> EveryValue() {
  std::vector<uint16_t> values(kAllHalves);
  for (uint32_t i = 0; i < kAllHalves; ++i) values[i] = static_cast<uint16_t>(i);
  return values;
}

std::vector<float> Widen(DataType type, const std::vector<uint16_t>& values) {
  std::vector<float> wide(values.size());
  Pack(type, values.data(), wide.data(), values.size(), 1);
  return wide;
}

std::vector<uint16_t> Narrow(DataType type, const std::vector<float>& values, double scale = 1) {
  std::vector<uint16_t> narrow(values.size());
  Unpack(type, values.data(), narrow.data(), values.size(), scale);
  return narrow;
}

// Compares with the reference; for a NaN only its being one, and its sign, are defined.
void ExpectNarrowed(const Format& format, const std::vector<float>& values) {
  const std::vector<uint16_t> narrow = Narrow(format.type, values);
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t expected = format.encode(values[i]);
    if (std::isnan(values[i])) {
      ASSERT_TRUE(std::isnan(format.decode(narrow[i]))) << std::hex << Bits(values[i]);
      ASSERT_EQ(narrow[i] & 0x8000, expected & 0x8000) << std::hex << Bits(values[i]);
    } else {
      ASSERT_EQ(narrow[i], expected) << Name(format.type) << " of " << std::hex << Bits(values[i]);
    }
  }
}

TEST(ReduceTest, WidensEveryHalfAndBfloat16Exactly) {
  for (const Format& format : kFormats) {
    const std::vector<uint16_t> values = EveryValue();
    const std::vector<float> wide = Widen(format.type, values);
    for (uint32_t i = 0; i < kAllHalves; ++i) {
      const double expected = format.decode(values[i]);
      ASSERT_EQ(std::isnan(expected), std::isnan(wide[i])) << std::hex << i;
      if (std::isnan(expected)) continue;
      ASSERT_EQ(static_cast<double>(wide[i]), expected) << std::hex << i;
      ASSERT_EQ(std::signbit(wide[i]), std::signbit(expected)) << std::hex << i;
    }
  }
}

TEST(ReduceTest, WideningAndNarrowingGivesEveryValueBack) {
  for (const Format& format : kFormats) {
    const std::vector<uint16_t> values = EveryValue();
    const std::vector<uint16_t> back = Narrow(format.type, Widen(format.type, values));
    for (uint32_t i = 0; i < kAllHalves; ++i) {
      if (std::isnan(format.decode(values[i]))) {
        ASSERT_TRUE(std::isnan(format.decode(back[i]))) << std::hex << i;
      } else {
        ASSERT_EQ(back[i], values[i]);
      }
    }
  }
}

// Every value, the middle between it and the next, and the floats on either side of that middle.
TEST(ReduceTest, NarrowsToNearestEvenAroundEveryTie) {
  for (const Format& format : kFormats) {
    std::vector<float> values;
    for (uint32_t i = 0; i + 1 < kAllHalves; ++i) {
      const double low = format.decode(static_cast<uint16_t>(i));
      const double high = format.decode(static_cast<uint16_t>(i + 1));
      if (!std::isfinite(low)) continue;
      // The tie above the largest finite value lies where the next power of two would be.
      const double middle = std::isfinite(high)
                                ? (low + high) / 2
                                : low + (low - format.decode(static_cast<uint16_t>(i - 1))) / 2;
      const float tie = static_cast<float>(middle);
      values.insert(values.end(), {static_cast<float>(low), tie, std::nextafter(tie, INFINITY),
                                   std::nextafter(tie, -INFINITY)});
    }
    ExpectNarrowed(format, values);
  }
}

// An odd stride visits every exponent with many fractions, including NaNs and subnormals.
TEST(ReduceTest, NarrowsFloatsOfEveryKind) {
  std::vector<float> values;
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 2111) {
    values.push_back(FromBits(static_cast<uint32_t>(bits)));
  }
  for (uint32_t bits : {0x7f800000u, 0xff800000u, 0x7f800001u, 0xff800001u, 0x7fffffffu,
                        0xffffffffu, 0x7f7fffffu, 0x00000001u, 0x80000001u, 0x477fefffu,
                        0x477ff000u, 0x33000000u, 0x33000001u, 0x387fffffu, 0x38800000u}) {
    values.push_back(FromBits(bits));
  }
  for (const Format& format : kFormats) ExpectNarrowed(format, values);
}

TEST(ReduceTest, AnAverageOfHalvesIsRoundedOnce) {
  std::mt19937 random(7);
  for (const Format& format : kFormats) {
    for (int ranks : {2, 3, 7, 1000}) {
      const double scale = 1.0 / ranks;
      std::vector<float> sums(5000);
      for (float& sum : sums)
        sum = static_cast<float>(static_cast<int>(random() % 4001) - 2000) / 16;
      const std::vector<uint16_t> narrow = Narrow(format.type, sums, scale);
      for (size_t i = 0; i < sums.size(); ++i) {
        const float product = sums[i] * static_cast<float>(scale);
        ASSERT_EQ(narrow[i], format.encode(product)) << sums[i] << " / " << ranks;
      }
    }
  }
}

std::vector<char> RandomBytes(size_t size, int seed) {
  std::mt19937 random(seed);
  std::vector<char> bytes(size);
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

// NaN payloads, including signalling ones, may be data. Half types are widened, so they are not
// here.
TEST(ReduceTest, ScaleOneLeavesEveryBit) {
  for (DataType type : kAllTypes) {
    if (!IsWireForm(type)) continue;
    for (size_t count : {0, 1, 2, 1000}) {
      const std::vector<char> bytes = RandomBytes(count * SizeOf(type), 3);
      std::vector<char> wire(bytes.size()), out(bytes.size());
      Pack(type, bytes.data(), wire.data(), count, 1);
      EXPECT_EQ(wire, bytes) << Name(type);
      Unpack(type, wire.data(), out.data(), count, 1);
      EXPECT_EQ(out, bytes) << Name(type);
      Unpack(type, wire.data(), wire.data(), count, 1);
      EXPECT_EQ(wire, bytes) << Name(type);
    }
  }
}

TEST(ReduceTest, PackAndUnpackWriteTheirElementsAndNothingElse) {
  constexpr char kGuard = '\x5a';
  for (DataType type : kAllTypes) {
    const size_t wire_size = WireElements(type) * SizeOf(WireType(type));
    for (size_t count : {0, 1, 7, 64}) {
      std::vector<char> in(count * SizeOf(type));
      for (size_t i = 0; i < count * WireElements(type); ++i) {
        SetComponent(type, in.data(), i, static_cast<double>(i % 2));
      }
      std::vector<char> wire(count * wire_size + 16, kGuard), out(in.size() + 16, kGuard);
      Pack(type, in.data(), wire.data(), count, 1);
      Unpack(type, wire.data(), out.data(), count, 1);
      EXPECT_EQ(std::vector<char>(out.begin(), out.end() - 16), in) << Name(type);
      for (size_t i = 0; i < 16; ++i) {
        EXPECT_EQ(wire[count * wire_size + i], kGuard) << Name(type);
        EXPECT_EQ(out[in.size() + i], kGuard) << Name(type);
      }
    }
  }
}

TEST(ReduceTest, ScaleMultipliesInTheWireType) {
  for (DataType type :
       {DataType::kFloat32, DataType::kFloat64, DataType::kComplex64, DataType::kComplex128}) {
    const size_t count = 100, components = count * WireElements(type);
    std::vector<char> data(count * SizeOf(type));
    for (size_t i = 0; i < components; ++i) {
      SetComponent(type, data.data(), i, 0.5 * static_cast<double>(i) - 20);
    }
    Unpack(type, data.data(), data.data(), count, 1.0 / 3);
    for (size_t i = 0; i < components; ++i) {
      const double value = 0.5 * static_cast<double>(i) - 20;
      const double expected = WireType(type) == DataType::kFloat32
                                  ? static_cast<float>(value) * static_cast<float>(1.0 / 3)
                                  : value * (1.0 / 3);
      ASSERT_EQ(GetComponent(type, data.data(), i), expected) << Name(type) << " " << i;
    }
  }
}

// Small integers, which every type can represent and every order of summation produces exactly.
// `out` is separate memory, or the first source's, or the last's.
TEST(ReduceTest, ReducesEveryTypeOverAnyNumberOfRanks) {
  for (DataType type : kAllTypes) {
    if (WireElements(type) != 1 || type == DataType::kBool) continue;  // sent as another type
    for (int ranks : {1, 2, 3, 5}) {
      for (size_t count : {size_t{0}, size_t{1}, size_t{1023}, size_t{2050}}) {
        for (int out_is : {-1, 0, ranks - 1}) {
          const size_t size = count * SizeOf(type);
          std::vector<std::vector<char>> memory(ranks + 1, std::vector<char>(size));
          std::vector<const void*> sources;
          for (int r = 0; r < ranks; ++r) {
            for (size_t i = 0; i < count; ++i) {
              SetComponent(type, memory[r].data(), i, static_cast<double>((i + r) % 5));
            }
            sources.push_back(memory[r].data());
          }
          std::vector<char>& out = memory[out_is < 0 ? ranks : out_is];
          std::vector<char> copy(size);
          const double scale = IsFloating(type) ? 0.5 : 1;
          Reduce({count, type, ReduceOp::kSum, scale}, sources.data(), ranks, count, out.data(),
                 copy.data());
          EXPECT_EQ(copy, out) << Name(type);
          for (size_t i = 0; i < count; ++i) {
            double sum = 0;
            for (int r = 0; r < ranks; ++r) sum += static_cast<double>((i + r) % 5);
            ASSERT_EQ(GetComponent(type, out.data(), i), sum * scale) << Name(type) << " " << ranks;
          }
        }
      }
    }
  }
}

// Whichever source it is in.
TEST(ReduceTest, TheMinimumAndMaximumOfANanAreNan) {
  constexpr size_t kCount = 2050, kRanks = 4;
  const auto value_of = [](size_t rank, size_t i) { return static_cast<double>((i + rank) % 5); };
  for (DataType type :
       {DataType::kFloat16, DataType::kBfloat16, DataType::kFloat32, DataType::kFloat64}) {
    for (ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
      std::vector<std::vector<char>> memory(kRanks, std::vector<char>(kCount * SizeOf(type)));
      std::vector<const void*> sources;
      for (size_t r = 0; r < kRanks; ++r) {
        for (size_t i = 0; i < kCount; ++i) {
          SetComponent(type, memory[r].data(), i, i % 7 == r ? NAN : value_of(r, i));
        }
        sources.push_back(memory[r].data());
      }
      std::vector<char> out(kCount * SizeOf(type));
      Reduce({kCount, type, op, 1}, sources.data(), kRanks, kCount, out.data(), nullptr);
      for (size_t i = 0; i < kCount; ++i) {
        const double found = GetComponent(type, out.data(), i);
        double expected = value_of(0, i);
        for (size_t r = 1; r < kRanks; ++r) {
          const double value = value_of(r, i);
          expected = op == ReduceOp::kMin ? std::fmin(expected, value) : std::fmax(expected, value);
        }
        ASSERT_EQ(std::isnan(found), i % 7 < kRanks) << Name(type) << " " << Name(op) << " " << i;
        if (!std::isnan(found)) {
          ASSERT_EQ(found, expected) << Name(type) << " " << Name(op) << " " << i;
        }
      }
    }
  }
}

TEST(ReduceTest, FingerprintOfZerosIsZero) {
  const std::vector<char> zeros(100, 0);
  for (size_t size = 0; size <= zeros.size(); ++size)
    EXPECT_EQ(Fingerprint(zeros.data(), size), 0u);
}

TEST(ReduceTest, FingerprintSeesEveryBitAndTheLength) {
  std::vector<char> bytes = RandomBytes(67, 11);  // not a whole number of words
  const uint64_t original = Fingerprint(bytes.data(), bytes.size());
  EXPECT_NE(original, 0u);
  EXPECT_EQ(original, Fingerprint(std::vector<char>(bytes).data(), bytes.size()));
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_NE(Fingerprint(bytes.data(), bytes.size()), original) << "bit " << bit;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
  }
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_NE(Fingerprint(bytes.data(), size), original);
  }
  std::vector<char> swapped(bytes);  // order counts
  std::swap_ranges(swapped.begin(), swapped.begin() + 8, swapped.begin() + 8);
  EXPECT_NE(Fingerprint(swapped.data(), swapped.size()), original);
}

}  // namespace
}  // namespace tfmpi
