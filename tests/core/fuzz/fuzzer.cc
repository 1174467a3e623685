#include "tests/core/fuzz/fuzzer.h"

#include <algorithm>
#include <fstream>
#include <utility>

namespace {

// Whether a branch was ever taken, by a hash of its address.
constexpr size_t kBranches = size_t{1} << 16;
unsigned char taken[kBranches];
bool took_a_new_one = false;

}  // namespace

// Called by the code under test at every branch.
extern "C" void __sanitizer_cov_trace_pc() {
  const auto where = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
  unsigned char& branch = taken[(where ^ (where >> 16)) % kBranches];
  took_a_new_one |= branch == 0;
  branch = 1;
}

namespace tfmpi {

int Fuzzer::branches() const { return static_cast<int>(std::count(taken, taken + kBranches, 1)); }

// 0xff begins a length of billions.
char Fuzzer::Byte() {
  constexpr unsigned char kTelling[] = {0, 1, 2, 0x7f, 0x80, 0x81, 0xfe, 0xff};
  return static_cast<char>(Below(2) == 0 ? kTelling[Below(8)] : Below(256));
}

void Fuzzer::Change(std::string* bytes) {
  const size_t at = static_cast<size_t>(Below(static_cast<int>(bytes->size()) + 1));
  switch (Below(7)) {
    case 0:
      if (at < bytes->size()) (*bytes)[at] = static_cast<char>((*bytes)[at] ^ (1 << Below(8)));
      break;
    case 1:
      if (at < bytes->size()) (*bytes)[at] = Byte();
      break;
    case 2:
      bytes->insert(at, static_cast<size_t>(1 + Below(3)), Byte());
      break;
    case 3:
      bytes->erase(at, static_cast<size_t>(1 + Below(8)));
      break;
    case 4:  // a number that is written in ten bytes
      bytes->insert(at, std::string(static_cast<size_t>(8 + Below(4)), '\xff') + Byte());
      break;
    case 5:
      bytes->insert(at, bytes->substr(at / 2, static_cast<size_t>(Below(40))));
      break;
    default: {
      const std::string& other =
          corpus_[static_cast<size_t>(Below(static_cast<int>(corpus_.size())))];
      const size_t from = static_cast<size_t>(Below(static_cast<int>(other.size()) + 1));
      bytes->replace(at, std::string::npos, other, from, std::string::npos);
    }
  }
  if (bytes->size() > kMaxBytes) bytes->resize(kMaxBytes);
}

std::string Fuzzer::Next() {
  if (corpus_.empty()) corpus_.emplace_back();
  std::string bytes = corpus_[static_cast<size_t>(Below(static_cast<int>(corpus_.size())))];
  for (int changes = 1 + Below(4); changes > 0; --changes) Change(&bytes);
  return bytes;
}

std::string Fuzzer::Run(int times, const std::function<std::string(const std::string&)>& read) {
  for (int i = 0; i < times; ++i) {
    const std::string bytes = Next();
    const std::string wrong = read(bytes);
    if (!wrong.empty()) return wrong + ": " + ToHex(bytes);
    if (std::exchange(took_a_new_one, false)) Add(bytes);
  }
  return "";
}

std::string ToHex(const std::string& bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    hex += kDigits[byte >> 4];
    hex += kDigits[byte & 15];
  }
  return hex;
}

std::string FromHex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

std::vector<std::string> ReadCorpus(const std::string& file, const std::string& kind) {
  std::vector<std::string> corpus;
  std::ifstream lines(file);
  std::string line;
  while (std::getline(lines, line)) {
    if (line.rfind(kind + " ", 0) == 0) corpus.push_back(FromHex(line.substr(kind.size() + 1)));
  }
  return corpus;
}

}  // namespace tfmpi
