#include "tensorflow_patches/core/huge_pages.h"

#include <sys/mman.h>

namespace tfmpi {
namespace {

constexpr uintptr_t kPage = uintptr_t{2} << 20;
// Below, the caches' own tables of pages suffice.
constexpr size_t kLeastBytes = size_t{4} << 20;
// A script whose buffers never come back must not fill the memory with their addresses.
constexpr size_t kMostPages = size_t{1} << 20;
// Linux 6.1: moves to large pages what is there, at once. Older headers lack its name, older
// kernels refuse it.
constexpr int kCollapse = 25;

}  // namespace

void HugePages::Prefer(const void* memory, size_t bytes) {
  if (bytes < kLeastBytes) return;
  const uintptr_t start = reinterpret_cast<uintptr_t>(memory);
  const uintptr_t first = (start + kPage - 1) / kPage;
  const uintptr_t last = (start + bytes) / kPage;
  uintptr_t begin = last;  // of what is new
  for (uintptr_t page = first; page < last && asked_.size() < kMostPages; ++page) {
    if (asked_.insert(page).second && begin == last) begin = page;
  }
  if (begin == last) return;
  void* const from = reinterpret_cast<void*>(begin * kPage);
  madvise(from, (last - begin) * kPage, MADV_HUGEPAGE);
  madvise(from, (last - begin) * kPage, kCollapse);
}

}  // namespace tfmpi
