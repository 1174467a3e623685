// Generates inputs that reach more and more of the code that reads them.
//
// Inputs that take a new branch are kept and changed further: by bits, by wrong lengths, by parts
// of one another. The code is built with -fsanitize-coverage=trace-pc, which GCC supports;
// libFuzzer would need Clang. The same seed gives the same bytes.

#ifndef TFMPI_TESTS_CORE_FUZZ_FUZZER_H_
#define TFMPI_TESTS_CORE_FUZZ_FUZZER_H_

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

namespace tfmpi {

class Fuzzer {
 public:
  explicit Fuzzer(uint64_t seed) : random_(seed) {}

  int Below(int bound) { return static_cast<int>(random_() % static_cast<uint64_t>(bound)); }

  // Adds an input for Run to change.
  void Add(const std::string& bytes) { corpus_.push_back(bytes); }
  const std::vector<std::string>& corpus() const { return corpus_; }
  // The number of branches taken by any bytes so far.
  int branches() const;

  // Passes changed inputs to `read`, `times` times; `read` returns what is wrong, or "". The first
  // failure ends the run and is returned with the bytes in hexadecimal.
  std::string Run(int times, const std::function<std::string(const std::string&)>& read);

 private:
  static constexpr size_t kMaxBytes = 4096;

  std::string Next();
  void Change(std::string* bytes);
  char Byte();

  std::mt19937_64 random_;
  std::vector<std::string> corpus_;
};

std::string ToHex(const std::string& bytes);
std::string FromHex(const std::string& hex);
// One input per line, after its kind and a space. Lines that begin with # are comments.
std::vector<std::string> ReadCorpus(const std::string& file, const std::string& kind);

}  // namespace tfmpi

#endif  // TFMPI_TESTS_CORE_FUZZ_FUZZER_H_
