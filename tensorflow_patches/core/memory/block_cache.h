// A cache of large blocks of memory: a step reuses the blocks that the previous one has freed.
//
// glibc returns a large block to the kernel when it is freed, and gets a new one, zeroed page by
// page, for the next step. For 100 MB of gradients that takes longer than averaging them. Here a
// freed block waits to be reused; from 4 MB on it has large pages, if the kernel has any. The total
// size is limited (kMaxSpare): if no waiting block has about the requested size, and there is no
// room for another, the pages of waiting blocks are moved to a new large block (mremap), so the
// kernel need not zero any. Blocks that have waited long are unmapped by the next Allocate.
//
// Any thread. Owns all blocks; those that are not freed stay until the process ends.

#ifndef TFMPI_CORE_MEMORY_BLOCK_CACHE_H_
#define TFMPI_CORE_MEMORY_BLOCK_CACHE_H_

#include <cstddef>
#include <list>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "tensorflow_patches/core/base/types.h"

namespace tfmpi {

class BlockCache {
 public:
  // Smaller blocks are left to malloc, which keeps them itself.
  static constexpr size_t kMinBytes = size_t{1} << 20;
  static constexpr size_t kAlignment = size_t{2} << 20;
  // The total size may exceed the most that was ever in use by this much, or by half if that is
  // less. A step needs blocks of different sizes in turn; without this room, pages would be moved
  // for each of them in every step.
  static constexpr size_t kMaxSpare = size_t{256} << 20;
  // How long a block waits to be reused.
  static constexpr std::chrono::seconds kLongestWait{30};

  explicit BlockCache(size_t max_spare = kMaxSpare) : max_spare_(max_spare) {}

  // Aligned to kAlignment, uninitialized; null if `bytes` is too small for the cache, or there is
  // no memory.
  void* Allocate(size_t bytes, TimePoint now);
  // False if `block` is not from this cache.
  bool Free(void* block, TimePoint now);

  // Called around a fork, on the thread that forks, AfterFork in both processes, so that the
  // child's cache is intact and unlocked.
  void BeforeFork() { mutex_.lock(); }
  void AfterFork() { mutex_.unlock(); }

  size_t bytes_in_use() const;
  size_t bytes_waiting() const;

 private:
  struct Block {
    char* start;
    size_t bytes;
    // The sizes of its mappings, in order. The kernel does not merge mappings whose pages were
    // moved, and mremap takes only one mapping.
    std::vector<size_t> mappings;
    TimePoint since;  // when it was freed
  };

  char* TakeWaiting(size_t bytes);
  bool MoveWaitingPages(size_t bytes, Block* to);
  void Unmap(std::list<Block>::iterator waiting);

  const size_t max_spare_;
  mutable std::mutex mutex_;  // guards all below
  std::unordered_map<const void*, Block> in_use_;
  std::list<Block> waiting_;  // in the order in which they were freed
  size_t bytes_in_use_ = 0;
  size_t bytes_waiting_ = 0;
  size_t max_in_use_ = 0;
  size_t mappings_ = 0;  // of all blocks
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_MEMORY_BLOCK_CACHE_H_
