#include "tensorflow_patches/core/freed_memory.h"

#include <climits>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace tfmpi {
void KeepFreedMemory() {
#if defined(__GLIBC__)
  // The heaps of other threads than the first are this large, and go as soon as they are empty
  // unless they are to keep as much.
  constexpr int kThreadHeap = 64 << 20;
  mallopt(M_MMAP_THRESHOLD, INT_MAX);
  mallopt(M_TRIM_THRESHOLD, INT_MAX);
  mallopt(M_TOP_PAD, kThreadHeap);
#endif
}

}  // namespace tfmpi
