// The kernels' text, run by an interpreter of the few instructions that they use: a machine without
// a GPU, or a compiler for one, finds out whether they add up rightly. A real GPU does, too, in
// device_test.cc.

#include "tensorflow_patches/core/device/sum_kernels.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/core/support/elements.h"

namespace tfmpi {
namespace {

using Words = std::vector<std::string>;

template <typename T>
T As(uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}
template <typename T>
uint64_t Bits(T value) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return bits;
}

// One kernel of a module.
class Kernel {
 public:
  Kernel(const std::string& module, const std::string& name) {
    const size_t begin = module.find(".entry " + name + "(");
    if (begin == std::string::npos) throw std::runtime_error("no kernel " + name);
    std::istringstream text(module.substr(begin, module.find("\n}", begin) - begin));
    std::string line;
    std::getline(text, line);
    while (std::getline(text, line)) {
      const Words words = Split(line);
      if (words.empty() || words[0] == ")" || words[0] == "{" || words[0] == ".reg") continue;
      if (words[0] == ".param") {
        parameters_.push_back(words[2]);
      } else if (words[0].back() == ':') {
        labels_[words[0].substr(0, words[0].size() - 1)] = lines_.size();
      } else {
        lines_.push_back(words);
      }
    }
  }

  void Run(unsigned blocks, unsigned threads, const std::vector<uint64_t>& arguments) {
    for (unsigned block = 0; block < blocks; ++block) {
      for (unsigned thread = 0; thread < threads; ++thread) {
        registers_ = {
            {"%ctaid.x", block}, {"%tid.x", thread}, {"%ntid.x", threads}, {"%nctaid.x", blocks}};
        for (size_t i = 0; i < parameters_.size(); ++i) values_[parameters_[i]] = arguments.at(i);
        RunThread();
      }
    }
  }

 private:
  // By spaces and commas; brackets and the semicolon are dropped, braces are words.
  static Words Split(const std::string& line) {
    Words words;
    std::string word;
    for (const char c : line + " ") {
      if (c != ' ' && c != ',' && c != ';' && c != '[' && c != ']' && c != '{' && c != '}') {
        word += c;
        continue;
      }
      if (!word.empty()) words.push_back(word);
      word.clear();
      if (c == '{' || c == '}') words.emplace_back(1, c);
    }
    return words;
  }

  void RunThread() {
    size_t next = 0;
    while (true) {
      Words words = lines_.at(next++);
      if (words[0][0] == '@') {
        if (Get(words[0].substr(1)) == 0) continue;
        words.erase(words.begin());
      }
      if (words[0] == "ret") return;
      if (words[0] == "bra") {
        next = labels_.at(words[1]);
      } else {
        Do(words[0], Words(words.begin() + 1, words.end()));
      }
    }
  }

  uint64_t Get(const std::string& operand) const {
    if (operand[0] == '%') return registers_.at(operand);  // throws if it was never set
    return std::stoull(operand, nullptr, 0);
  }
  template <typename T>
  T Real(const std::string& operand) const {
    return As<T>(Get(operand));
  }
  void Set(const std::string& name, uint64_t value) { registers_[name] = value; }
  void Set32(const std::string& name, uint64_t value) { Set(name, value & 0xffffffffu); }

  void Do(const std::string& op, const Words& w) {
    if (op.rfind("ld.global.", 0) == 0 || op.rfind("st.global.", 0) == 0) return Memory(op, w);
    if (op.rfind("ld.param.", 0) == 0) return Set(w[0], values_.at(w[1]));
    if (op.rfind("mov.", 0) == 0) return Move(w);
    if (op.rfind("cvt.", 0) == 0) return Convert(op, w);
    if (op == "add.u64") return Set(w[0], Get(w[1]) + Get(w[2]));
    if (op == "add.u32") return Set32(w[0], Get(w[1]) + Get(w[2]));
    if (op == "mul.lo.u64" || op == "mul.wide.u32") return Set(w[0], Get(w[1]) * Get(w[2]));
    if (op == "mad.wide.u32") return Set(w[0], Get(w[1]) * Get(w[2]) + Get(w[3]));
    if (op == "shl.b32") return Set32(w[0], Get(w[1]) << Get(w[2]));
    if (op == "shr.u32") return Set32(w[0], Get(w[1]) >> Get(w[2]));
    if (op == "and.b32") return Set32(w[0], Get(w[1]) & Get(w[2]));
    if (op == "or.b32") return Set32(w[0], Get(w[1]) | Get(w[2]));
    if (op == "selp.b32") return Set32(w[0], Get(w[3]) != 0 ? Get(w[1]) : Get(w[2]));
    if (op == "setp.ge.u64") return Set(w[0], Get(w[1]) >= Get(w[2]));
    if (op == "setp.lt.u64") return Set(w[0], Get(w[1]) < Get(w[2]));
    if (op == "setp.nan.f32") return Set(w[0], std::isnan(Real<float>(w[1])));
    if (op == "mul.rn.f32") return Set(w[0], Bits(Real<float>(w[1]) * Real<float>(w[2])));
    if (op == "mul.rn.f64") return Set(w[0], Bits(Real<double>(w[1]) * Real<double>(w[2])));
    if (op == "fma.rn.f32") {
      return Set(w[0], Bits(std::fma(Real<float>(w[1]), Real<float>(w[2]), Real<float>(w[3]))));
    }
    if (op == "fma.rn.f64") {
      return Set(w[0], Bits(std::fma(Real<double>(w[1]), Real<double>(w[2]), Real<double>(w[3]))));
    }
    throw std::runtime_error("the interpreter has no " + op);
  }

  // Also of two halves to and from a word.
  void Move(const Words& w) {
    if (w[0] == "{") {
      Set(w[1], Get(w[4]) & 0xffff);
      Set(w[2], Get(w[4]) >> 16);
    } else if (w[1] == "{") {
      Set(w[0], Get(w[2]) | Get(w[3]) << 16);
    } else {
      Set(w[0], Get(w[1]));
    }
  }

  void Convert(const std::string& op, const Words& w) {
    if (op == "cvt.u64.u32") return Set(w[0], Get(w[1]));
    if (op == "cvt.rn.f32.f64") return Set(w[0], Bits(static_cast<float>(Real<double>(w[1]))));
    if (op == "cvt.f32.f16") {
      const auto half = static_cast<uint16_t>(Get(w[1]));
      return Set(w[0], Bits(static_cast<float>(DecodeFloat16(half))));
    }
    if (op == "cvt.rn.f16.f32") return Set(w[0], EncodeFloat16(Real<float>(w[1])));
    throw std::runtime_error("the interpreter has no " + op);
  }

  void Memory(const std::string& op, const Words& w) {
    const std::string type = op.substr(op.rfind('.') + 1);
    const size_t bytes = std::stoul(type.substr(1)) / 8;
    const bool loads = op[0] == 'l';
    Words names;
    for (const std::string& word : w) {
      if (word != "{" && word != "}") names.push_back(word);
    }
    char* memory = As<char*>(Get(loads ? names.back() : names.front()));
    names.erase(loads ? names.end() - 1 : names.begin());
    if (reinterpret_cast<uintptr_t>(memory) % (bytes * names.size()) != 0) {
      throw std::runtime_error("misaligned: " + op);
    }
    for (const std::string& name : names) {
      uint64_t value = loads ? 0 : Get(name);
      std::memcpy(loads ? reinterpret_cast<char*>(&value) : memory,
                  loads ? memory : reinterpret_cast<char*>(&value), bytes);
      if (loads) Set(name, value);
      memory += bytes;
    }
  }

  Words parameters_;
  std::vector<Words> lines_;
  std::map<std::string, size_t> labels_;
  std::map<std::string, uint64_t> values_;     // of parameters
  std::map<std::string, uint64_t> registers_;  // of the thread that runs
};

constexpr size_t kRoom = 1024;
// In float32, with a rounding after each operation.
const std::vector<double> kScales = {0.7f, 0.0123f, -3, 1, 0, 0.5f, 1, 1e-3f};
const std::vector<double> kValues = {1,     1.5,     3.1415926, -0.001, 65000, 1e-7,
                                     255.5, -127.75, 2.0 / 3,   -1e30,  1e-40, -0.0};

template <typename T>
double Expected(DataType type, const std::vector<std::vector<char>>& sources, size_t i) {
  T sum = static_cast<T>(GetComponent(type, sources[0].data(), i)) * static_cast<T>(kScales[0]);
  for (size_t k = 1; k < sources.size(); ++k) {
    sum = std::fma(static_cast<T>(GetComponent(type, sources[k].data(), i)),
                   static_cast<T>(kScales[k]), sum);
  }
  return sum;
}

void Check(size_t sources, DataType type, Grain grain) {
  const size_t grains = 23;
  const size_t count = grains * GrainBytes(type, grain) / SizeOf(type);
  std::vector<std::vector<char>> memory(sources + 1, std::vector<char>(kRoom, '\x5a'));
  std::vector<uint64_t> arguments = {Bits(memory.back().data()), grains};
  for (size_t k = 0; k < sources; ++k) {
    for (size_t i = 0; i < count; ++i) {
      SetComponent(type, memory[k].data(), i, kValues[(i * (k + 1) + k) % kValues.size()]);
    }
    arguments.push_back(Bits(memory[k].data()));
  }
  for (size_t k = 0; k < sources; ++k) arguments.push_back(Bits(kScales[k]));
  Kernel kernel(SumKernels(sources), SumKernelName(type, grain));
  kernel.Run(2, 5, arguments);  // fewer threads than grains
  std::vector<char> expected(kRoom, '\x5a');
  const std::vector<std::vector<char>> inputs(memory.begin(), memory.end() - 1);
  for (size_t i = 0; i < count; ++i) {
    SetComponent(type, expected.data(), i,
                 type == DataType::kFloat64 ? Expected<double>(type, inputs, i)
                                            : Expected<float>(type, inputs, i));
  }
  EXPECT_EQ(memory.back(), expected)
      << sources << " of " << Name(type) << (grain == Grain::kWide ? ", wide" : "");
}

TEST(SumKernelsTest, EachAddsUpAndRoundsOnce) {
  for (const size_t sources : {size_t{2}, size_t{3}, size_t{8}}) {
    for (const DataType type :
         {DataType::kFloat16, DataType::kBfloat16, DataType::kFloat32, DataType::kFloat64}) {
      for (const Grain grain : {Grain::kElement, Grain::kWide}) Check(sources, type, grain);
    }
  }
}

TEST(SumKernelsTest, NotANumberStaysNone) {
  for (const DataType type : {DataType::kFloat16, DataType::kBfloat16, DataType::kFloat32}) {
    std::vector<char> first(16), second(16), out(16);
    SetComponent(type, first.data(), 0, std::nan(""));
    SetComponent(type, second.data(), 1, INFINITY);
    Kernel kernel(SumKernels(2), SumKernelName(type, Grain::kElement));
    kernel.Run(
        1, 2, {Bits(out.data()), 2, Bits(first.data()), Bits(second.data()), Bits(1.0), Bits(1.0)});
    EXPECT_TRUE(std::isnan(GetComponent(type, out.data(), 0))) << Name(type);
    EXPECT_TRUE(std::isinf(GetComponent(type, out.data(), 1))) << Name(type);
  }
}

}  // namespace
}  // namespace tfmpi
