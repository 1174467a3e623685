// Large blocks of memory that come back: what one step frees, the next step gets.
//
// glibc gives a large block back to the kernel when it is freed, and gets it anew, page by page and
// full of zeros, for the next step: of 100 MB of gradients that takes longer than averaging them.
// Here a freed block waits for its next use, on large pages. Blocks in use and waiting are never
// more than were once in use at a time, and what has waited for long goes when the next is asked
// for.
//
// Any thread. Owns all blocks; those that are not freed stay until the process ends.

#ifndef TFMPI_CORE_BLOCK_CACHE_H_
#define TFMPI_CORE_BLOCK_CACHE_H_

#include <cstddef>
#include <list>
#include <mutex>
#include <unordered_map>

#include "tensorflow_patches/core/types.h"

namespace tfmpi {

class BlockCache {
 public:
  // Smaller blocks are malloc's affair, which keeps them.
  static constexpr size_t kLeastBytes = size_t{4} << 20;
  static constexpr size_t kAlignment = size_t{2} << 20;
  // Of a block that nobody asks for.
  static constexpr std::chrono::seconds kLongestWait{30};

  // Aligned to kAlignment, its contents undefined; null if it is too small for here, or there is no
  // memory.
  void* Allocate(size_t bytes, TimePoint now);
  // False if `block` is not of this cache.
  bool Free(void* block, TimePoint now);

  size_t bytes_in_use() const;
  size_t bytes_waiting() const;

 private:
  struct Waiting {
    char* block;
    size_t bytes;
    TimePoint since;
  };

  char* TakeWaiting(size_t bytes);
  void Unmap(std::list<Waiting>::iterator waiting);

  mutable std::mutex mutex_;  // guards all below
  std::unordered_map<const void*, size_t> in_use_;
  std::list<Waiting> waiting_;  // longest first
  size_t bytes_in_use_ = 0;
  size_t bytes_waiting_ = 0;
  size_t most_in_use_ = 0;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_BLOCK_CACHE_H_
