// Small blocks of memory that come back, in front of the allocator that made them.
//
// TensorFlow aligns each tensor to a cache line. glibc 2.36 has a cache per thread, and does not
// ask it for aligned blocks: it cuts each out of a larger one, and gives back what is left. Where
// ranks average, all gradients of a step are alive at once, so that what one op frees is not what
// the next one gets, and a step of 400 small ones pays more for memory than for its updates.
// Here what a thread frees waits for what that thread allocates.
//
// Every block is the allocator's own, before and after: whoever frees one elsewhere does no harm.

#ifndef TFMPI_CORE_SMALL_BLOCKS_H_
#define TFMPI_CORE_SMALL_BLOCKS_H_

#include <array>
#include <atomic>
#include <cstddef>

namespace tfmpi {

// How much memory all threads together may keep. Any thread.
class MemoryBudget {
 public:
  explicit constexpr MemoryBudget(size_t bytes) : left_(bytes) {}

  // False if so much is not left.
  bool Claim(size_t bytes);
  void Return(size_t bytes) { left_.fetch_add(bytes, std::memory_order_relaxed); }
  size_t left() const { return left_.load(std::memory_order_relaxed); }

 private:
  std::atomic<size_t> left_;
};

// Of one thread.
class SmallBlocks {
 public:
  static constexpr size_t kUnit = 64;  // all are aligned to it, and have a multiple of it
  static constexpr size_t kMostBytes = size_t{64} << 10;
  static constexpr size_t kClaim = size_t{1} << 20;
  // A thread frees what others allocate, perhaps: something must be left for these.
  static constexpr size_t kMostClaims = 16;

  using Release = void (*)(void*);

  // `release` is the allocator's, `budget` is the caller's.
  SmallBlocks(MemoryBudget* budget, Release release) : budget_(budget), release_(release) {}
  ~SmallBlocks();
  SmallBlocks(const SmallBlocks&) = delete;
  SmallBlocks& operator=(const SmallBlocks&) = delete;

  static constexpr size_t Rounded(size_t bytes) { return (bytes + kUnit - 1) / kUnit * kUnit; }

  // The one of that size that was freed last; null if none waits.
  void* Take(size_t bytes);
  // A block of `capacity` usable bytes; false if it is not to wait here. Where there is no room,
  // all that wait are released: they may be of sizes that nobody asks for any more.
  bool Keep(void* block, size_t capacity);

  size_t bytes_waiting() const { return bytes_waiting_; }

 private:
  struct Waiting {  // lies in the block
    Waiting* next;
  };

  bool MakeRoom(size_t bytes);
  void ReleaseAll();

  MemoryBudget* const budget_;
  const Release release_;
  size_t claims_ = 0;
  size_t bytes_waiting_ = 0;
  std::array<Waiting*, kMostBytes / kUnit + 1> by_units_{};
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_SMALL_BLOCKS_H_
