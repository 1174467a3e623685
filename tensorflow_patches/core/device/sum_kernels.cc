#include "tensorflow_patches/core/device/sum_kernels.h"

#include <vector>

namespace tfmpi {
namespace {

constexpr size_t kWideBytes = 16;
constexpr DataType kTypes[] = {DataType::kFloat16, DataType::kBfloat16, DataType::kFloat32,
                               DataType::kFloat64};

// Registers are named after their contents and numbered: "%w2_1" is word 1 of source 2.
std::string Of(const char* name, size_t a) { return name + std::to_string(a); }
std::string Of(const char* name, size_t a, size_t b) {
  return Of(name, a) + "_" + std::to_string(b);
}

std::string Joined(const std::vector<std::string>& parts) {
  std::string joined;
  for (const std::string& part : parts) joined += (joined.empty() ? "" : ", ") + part;
  return joined;
}

class Kernel {
 public:
  Kernel(DataType type, Grain grain, size_t sources)
      : type_(type), grain_(grain), sources_(sources) {}

  std::string Text() {
    Head();
    Line("setp.ge.u64 %done, %i, %count;");
    Line("@%done bra END;");
    text_ += "LOOP:\n";
    Line("mul.lo.u64 %at, %i, " + std::to_string(GrainBytes(type_, grain_)) + ";");
    // All loads are issued before the first one is waited for.
    for (size_t k = 0; k < sources_; ++k) Load(k);
    for (size_t word = 0; word < words(); ++word) {
      for (size_t lane = 0; lane < lanes(); ++lane) {
        for (size_t k = 0; k < sources_; ++k) Add(k, word, lane);
      }
      Round(word);
    }
    Store();
    Line("add.u64 %i, %i, %step;");
    Line("setp.lt.u64 %more, %i, %count;");
    Line("@%more bra LOOP;");
    text_ += "END:\n";
    Line("ret;");
    text_ += "}\n";
    return text_;
  }

 private:
  bool is_double() const { return type_ == DataType::kFloat64; }
  bool is_16_bit() const { return SizeOf(type_) == 2; }
  bool is_wide() const { return grain_ == Grain::kWide; }
  // A word is the part of a grain in one register: a double, a float, or one or two 16-bit numbers,
  // its lanes.
  size_t words() const { return !is_wide() ? 1 : is_double() ? 2 : 4; }
  size_t lanes() const { return is_16_bit() && is_wide() ? 2 : 1; }
  const char* real() const { return is_double() ? "f64" : "f32"; }
  const char* bits() const { return is_double() ? "b64" : "b32"; }

  void Line(const std::string& line) { text_ += "  " + line + "\n"; }

  void Head() {
    const std::string name = SumKernelName(type_, grain_);
    std::string parameters = "  .param .u64 out,\n  .param .u64 count";
    for (size_t k = 0; k < sources_; ++k) parameters += ",\n  .param .u64 " + Of("source", k);
    for (size_t k = 0; k < sources_; ++k) parameters += ",\n  .param .f64 " + Of("scale", k);
    text_ = ".visible .entry " + name + "(\n" + parameters + "\n)\n{\n";
    Line(".reg .pred %done, %more, %nan;");
    Line(".reg .b64 %i, %step, %count, %at, %out, %to;");
    Line(".reg .b32 %block, %threads, %thread, %blocks, %t, %odd;");
    Line(".reg .b16 %low, %high;");
    Line(".reg .f32 %x;");
    Line(".reg .f64 %double;");
    for (size_t lane = 0; lane < 2; ++lane) {
      Line(std::string(".reg .") + real() + " " + Of("%sum", lane) + ";");
    }
    for (size_t word = 0; word < words(); ++word) {
      Line(std::string(".reg .") + bits() + " " + Of("%r", word) + ";");
    }
    Line("ld.param.u64 %out, [out];");
    Line("ld.param.u64 %count, [count];");
    for (size_t k = 0; k < sources_; ++k) {
      Line(".reg .b64 " + Of("%source", k) + ", " + Of("%from", k) + ";");
      Line(std::string(".reg .") + real() + " " + Of("%scale", k) + ";");
      for (size_t word = 0; word < words(); ++word) {
        Line(std::string(".reg .") + bits() + " " + Of("%w", k, word) + ";");
      }
      Line("ld.param.u64 " + Of("%source", k) + ", [" + Of("source", k) + "];");
      Line("ld.param.f64 %double, [" + Of("scale", k) + "];");
      Line((is_double() ? "mov.f64 " : "cvt.rn.f32.f64 ") + Of("%scale", k) + ", %double;");
    }
    Line("mov.u32 %block, %ctaid.x;");
    Line("mov.u32 %threads, %ntid.x;");
    Line("mov.u32 %thread, %tid.x;");
    Line("mov.u32 %blocks, %nctaid.x;");
    Line("cvt.u64.u32 %i, %thread;");
    Line("mad.wide.u32 %i, %block, %threads, %i;");
    Line("mul.wide.u32 %step, %blocks, %threads;");
  }

  // "v4.b32", "b64", or "u16", which leaves the upper half of a 32-bit register zero.
  std::string Access() const {
    if (is_wide()) return (is_double() ? "v2." : "v4.") + std::string(bits());
    return is_16_bit() ? "u16" : bits();
  }
  std::string Registers(const std::vector<std::string>& names) const {
    return is_wide() ? "{" + Joined(names) + "}" : names[0];
  }

  void Load(size_t k) {
    std::vector<std::string> names;
    for (size_t word = 0; word < words(); ++word) names.push_back(Of("%w", k, word));
    Line("add.u64 " + Of("%from", k) + ", " + Of("%source", k) + ", %at;");
    Line("ld.global." + Access() + " " + Registers(names) + ", [" + Of("%from", k) + "];");
  }

  void Store() {
    std::vector<std::string> names;
    for (size_t word = 0; word < words(); ++word) names.push_back(Of("%r", word));
    Line("add.u64 %to, %out, %at;");
    Line("st.global." + Access() + " [%to], " + Registers(names) + ";");
  }

  // Multiplies and adds one lane of a word of source k.
  void Add(size_t k, size_t word, size_t lane) {
    const std::string sum = Of("%sum", lane);
    const std::string value = is_double() ? "%double" : "%x";
    Widen(Of("%w", k, word), lane, value);
    const std::string factors = value + ", " + Of("%scale", k);
    if (k == 0) {
      Line("mul.rn." + std::string(real()) + " " + sum + ", " + factors + ";");
    } else {
      Line("fma.rn." + std::string(real()) + " " + sum + ", " + factors + ", " + sum + ";");
    }
  }

  void Widen(const std::string& word, size_t lane, const std::string& value) {
    if (type_ == DataType::kFloat16) {
      Line("mov.b32 {%low, %high}, " + word + ";");
      Line("cvt.f32.f16 " + value + ", " + (lane == 0 ? "%low" : "%high") + ";");
    } else if (type_ == DataType::kBfloat16) {
      // The upper half of a float32.
      Line(lane == 0 ? "shl.b32 %t, " + word + ", 16;" : "and.b32 %t, " + word + ", 0xffff0000;");
      Line("mov.b32 " + value + ", %t;");
    } else {
      Line("mov." + std::string(bits()) + " " + value + ", " + word + ";");
    }
  }

  // Combines the sums of a word's lanes into the word of the result.
  void Round(size_t word) {
    const std::string result = Of("%r", word);
    if (!is_16_bit()) {
      Line("mov." + std::string(bits()) + " " + result + ", %sum0;");
    } else if (type_ == DataType::kFloat16) {
      Line("cvt.rn.f16.f32 %low, %sum0;");
      if (lanes() == 2) {
        Line("cvt.rn.f16.f32 %high, %sum1;");
      } else {
        Line("mov.b16 %high, 0;");
      }
      Line("mov.b32 " + result + ", {%low, %high};");
    } else {
      for (size_t lane = 0; lane < lanes(); ++lane) RoundBfloat16(lane, result);
    }
  }

  // Rounds to nearest, ties to even; GPUs before compute capability 8.0 have no instruction for it.
  void RoundBfloat16(size_t lane, const std::string& result) {
    const std::string sum = Of("%sum", lane);
    Line("mov.b32 %t, " + sum + ";");
    Line("shr.u32 %odd, %t, 16;");
    Line("and.b32 %odd, %odd, 1;");
    Line("add.u32 %t, %t, %odd;");
    Line("add.u32 %t, %t, 0x7fff;");
    Line("setp.nan.f32 %nan, " + sum + ", " + sum + ";");
    Line("selp.b32 %t, 0x7fc00000, %t, %nan;");
    if (lane == 0) {
      Line("shr.u32 " + result + ", %t, 16;");
    } else {
      Line("and.b32 %t, %t, 0xffff0000;");
      Line("or.b32 " + result + ", " + result + ", %t;");
    }
  }

  const DataType type_;
  const Grain grain_;
  const size_t sources_;
  std::string text_;
};

}  // namespace

size_t GrainBytes(DataType type, Grain grain) {
  return grain == Grain::kWide ? kWideBytes : SizeOf(type);
}

std::string SumKernelName(DataType type, Grain grain) {
  return std::string("sum_") + Name(type) + (grain == Grain::kWide ? "_wide" : "");
}

std::string SumKernels(size_t sources) {
  std::string text = ".version 6.0\n.target sm_60\n.address_size 64\n";
  for (const DataType type : kTypes) {
    for (const Grain grain : {Grain::kElement, Grain::kWide}) {
      text += "\n" + Kernel(type, grain, sources).Text();
    }
  }
  return text;
}

}  // namespace tfmpi
