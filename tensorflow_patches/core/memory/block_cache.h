// Large blocks of memory that come back: what one step frees, the next step gets.
//
// glibc gives a large block back to the kernel when it is freed, and gets it anew, page by page and
// full of zeros, for the next step: of 100 MB of gradients that takes longer than averaging them.
// Here a freed block waits for its next use, from 4 MB on large pages. Blocks in use and waiting
// are little more than were once in use at a time: where none that waits has the size asked for,
// and there is no room for another, the pages of those that wait move to a new large one (mremap),
// which the kernel need not fill with zeros. What has waited for long goes when the next is asked
// for.
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
  // Smaller blocks are malloc's affair, which keeps them.
  static constexpr size_t kMinBytes = size_t{1} << 20;
  static constexpr size_t kAlignment = size_t{2} << 20;
  // So much more than was once in use at a time may wait, at most half of that: the sizes of a step
  // take turns, and each would else be made of another's pages every time.
  static constexpr size_t kMaxSpare = size_t{256} << 20;
  // Of a block that nobody asks for.
  static constexpr std::chrono::seconds kLongestWait{30};

  explicit BlockCache(size_t most_spare = kMaxSpare) : most_spare_(most_spare) {}

  // Aligned to kAlignment, its contents undefined; null if it is too small for here, or there is no
  // memory.
  void* Allocate(size_t bytes, TimePoint now);
  // False if `block` is not of this cache.
  bool Free(void* block, TimePoint now);

  // Around a fork, on the thread that forks, so that the child finds the cache whole and unlocked.
  void BeforeFork() { mutex_.lock(); }
  void AfterFork() { mutex_.unlock(); }

  size_t bytes_in_use() const;
  size_t bytes_waiting() const;

 private:
  struct Block {
    char* start;
    size_t bytes;
    // The bytes of each, in order. The kernel does not join those whose pages were moved, and moves
    // one at a time.
    std::vector<size_t> mappings;
    TimePoint since;  // it waits
  };

  char* TakeWaiting(size_t bytes);
  bool MoveWaitingPages(size_t bytes, Block* to);
  void Unmap(std::list<Block>::iterator waiting);

  const size_t most_spare_;
  mutable std::mutex mutex_;  // guards all below
  std::unordered_map<const void*, Block> in_use_;
  std::list<Block> waiting_;  // longest first
  size_t bytes_in_use_ = 0;
  size_t bytes_waiting_ = 0;
  size_t most_in_use_ = 0;
  size_t mappings_ = 0;  // of all blocks
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_MEMORY_BLOCK_CACHE_H_
