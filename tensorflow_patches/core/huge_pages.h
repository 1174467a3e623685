// Large gradients on large pages: walking through 100 MB touches 25,600 small pages, and 50 large
// ones.

#ifndef TFMPI_CORE_HUGE_PAGES_H_
#define TFMPI_CORE_HUGE_PAGES_H_

#include <cstddef>
#include <cstdint>
#include <unordered_set>

namespace tfmpi {

// Remembers what it has asked for, so that a buffer that comes back every step costs one look.
// Not thread-safe.
class HugePages {
 public:
  // Asks the kernel to put the whole large pages inside this memory, whoever owns it, on large
  // pages. Its contents stay; where the kernel cannot or may not, nothing happens.
  void Prefer(const void* memory, size_t bytes);

 private:
  std::unordered_set<uintptr_t> asked_;  // large pages, by number
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_HUGE_PAGES_H_
