// Memory that begins on a cache line.

#ifndef TFMPI_CORE_MEMORY_LINE_MEMORY_H_
#define TFMPI_CORE_MEMORY_LINE_MEMORY_H_

#include <cstddef>
#include <cstdlib>
#include <memory>

namespace tfmpi {

struct FreeMemory {
  void operator()(char* memory) const { std::free(memory); }
};
using LineMemory = std::unique_ptr<char, FreeMemory>;

// Rounds `bytes` up to whole cache lines. Null if there is no memory.
inline LineMemory NewLineMemory(size_t bytes) {
  constexpr size_t kLine = 64;
  return LineMemory(
      static_cast<char*>(std::aligned_alloc(kLine, (bytes + kLine - 1) / kLine * kLine)));
}

}  // namespace tfmpi

#endif  // TFMPI_CORE_MEMORY_LINE_MEMORY_H_
