// When freed blocks are reused, and how long they are kept.

#include "tensorflow_patches/core/memory/block_cache.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/core/support/ranks.h"

namespace tfmpi {
namespace {

constexpr size_t kMega = size_t{1} << 20;
const TimePoint kNow = Clock::now();

TEST(BlockCacheTest, AFreedBlockIsTheNextOfItsSize) {
  BlockCache cache;
  void* const first = cache.Allocate(10 * kMega, kNow);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % BlockCache::kAlignment, 0u);
  std::memset(first, 7, 10 * kMega);
  void* const second = cache.Allocate(20 * kMega, kNow);
  std::memset(second, 8, 20 * kMega);
  EXPECT_TRUE(cache.Free(first, kNow));
  EXPECT_EQ(cache.bytes_waiting(), 10 * kMega);
  EXPECT_EQ(cache.Allocate(9 * kMega + 1, kNow), first);
  EXPECT_EQ(cache.bytes_in_use(), 30 * kMega);
  EXPECT_EQ(static_cast<char*>(first)[0], 7);
}

TEST(BlockCacheTest, ABlockMuchLargerThanNeededGoesOnWaiting) {
  BlockCache cache;
  void* const large = cache.Allocate(100 * kMega, kNow);
  void* const small = cache.Allocate(10 * kMega, kNow);
  EXPECT_TRUE(cache.Free(small, kNow));
  EXPECT_TRUE(cache.Free(large, kNow));
  EXPECT_EQ(cache.Allocate(10 * kMega, kNow), small);
  EXPECT_EQ(cache.Allocate(99 * kMega, kNow), large);
}

TEST(BlockCacheTest, WithWhatWaitsItHoldsLittleMoreThanWasInUse) {
  constexpr size_t kSpare = 20 * kMega;
  BlockCache cache(kSpare);
  size_t most = 0;
  std::vector<void*> blocks;
  for (size_t i = 0; i < 200; ++i) {
    const size_t bytes = (1 + i * 37 % 61) * kMega;
    if (blocks.size() > 3) {
      EXPECT_TRUE(cache.Free(blocks[i % 4], kNow));
      blocks.erase(blocks.begin() + i % 4);
    }
    blocks.push_back(cache.Allocate(bytes, kNow));
    ASSERT_NE(blocks.back(), nullptr);
    most = std::max(most, cache.bytes_in_use());
    EXPECT_LE(cache.bytes_in_use() + cache.bytes_waiting(), most + std::min(most / 2, kSpare));
    constexpr size_t kTouched = TFMPI_SANITIZED ? kMega : 4096;  // one byte in so many
    for (size_t at = 0; at < bytes; at += kTouched) static_cast<char*>(blocks.back())[at] = 1;
  }
}

TEST(BlockCacheTest, SizesThatTakeTurnsAllWaitWhereThereIsRoom) {
  BlockCache cache;
  void* blocks[2] = {};
  for (int step = 0; step < 3; ++step) {
    for (int i = 0; i < 2; ++i) {
      void* const block = cache.Allocate((6 + 8 * i) * kMega, kNow);
      EXPECT_TRUE(step < 1 || block == blocks[i]) << "step " << step;
      blocks[i] = block;
      EXPECT_TRUE(cache.Free(block, kNow));
    }
  }
}

// Pages that a new block gets from the kernel are zeros.
TEST(BlockCacheTest, ASizeThatNoneHasIsMadeOfPagesThatWait) {
  BlockCache cache(0);
  std::vector<char*> small;
  for (int i = 0; i < 3; ++i) {
    small.push_back(static_cast<char*>(cache.Allocate(10 * kMega, kNow)));
    std::memset(small.back(), 1 + i, 10 * kMega);
  }
  for (char* const block : small) EXPECT_TRUE(cache.Free(block, kNow));
  char* const large = static_cast<char*>(cache.Allocate(24 * kMega, kNow));
  EXPECT_EQ(cache.bytes_waiting(), 6 * kMega);
  EXPECT_EQ(std::count(large, large + 24 * kMega, 0), 0);
  EXPECT_EQ(std::count(large, large + 24 * kMega, 3), 10 * kMega) << "the last one freed";
  EXPECT_EQ(std::count(large, large + 24 * kMega, 1), 4 * kMega);

  // A block of several mappings is divided as well, across them.
  std::memset(large, 9, 24 * kMega);
  EXPECT_TRUE(cache.Free(large, kNow));
  char* const half = static_cast<char*>(cache.Allocate(12 * kMega, kNow));
  EXPECT_EQ(std::count(half, half + 12 * kMega, 9), 12 * kMega);
  char* const other = static_cast<char*>(cache.Allocate(18 * kMega, kNow));
  EXPECT_EQ(std::count(other, other + 18 * kMega, 9), 12 * kMega);
  EXPECT_EQ(std::count(other, other + 18 * kMega, 1), 6 * kMega);
  EXPECT_EQ(cache.bytes_waiting(), 0u);

  // Beyond what was ever in use, fresh pages are added at the end.
  EXPECT_TRUE(cache.Free(other, kNow));
  char* const grown = static_cast<char*>(cache.Allocate(20 * kMega, kNow));
  EXPECT_EQ(std::count(grown, grown + 18 * kMega, 0), 0);
  EXPECT_EQ(std::count(grown + 18 * kMega, grown + 20 * kMega, 0), 2 * kMega);
  EXPECT_EQ(cache.bytes_in_use(), 32 * kMega);
}

TEST(BlockCacheTest, ASmallBlockTakesLittleMoreThanItNeeds) {
  BlockCache cache(0);
  void* const first = cache.Allocate(kMega + 1, kNow);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % BlockCache::kAlignment, 0u);
  EXPECT_LE(cache.bytes_in_use(), kMega + kMega / 16);
  std::memset(first, 1, kMega + 1);
  char* const large = static_cast<char*>(cache.Allocate(10 * kMega, kNow));
  std::memset(large, 2, 10 * kMega);
  EXPECT_TRUE(cache.Free(first, kNow));
  EXPECT_TRUE(cache.Free(large, kNow));
  EXPECT_EQ(cache.Allocate(kMega + 1, kNow), first);
  EXPECT_TRUE(cache.Free(first, kNow));

  // A large one is made of large pages only, and what is small goes.
  char* const grown = static_cast<char*>(cache.Allocate(11 * kMega, kNow));
  EXPECT_EQ(std::count(grown, grown + 12 * kMega, 2), 10 * kMega);
  EXPECT_EQ(cache.bytes_in_use() + cache.bytes_waiting(), 12 * kMega);
  EXPECT_EQ(cache.bytes_waiting(), 0u);
}

TEST(BlockCacheTest, NoBlockWaitsForLong) {
  BlockCache cache;
  void* const old = cache.Allocate(10 * kMega, kNow);
  void* const other = cache.Allocate(50 * kMega, kNow);
  EXPECT_TRUE(cache.Free(old, kNow));
  EXPECT_TRUE(cache.Free(other, kNow + BlockCache::kLongestWait));
  cache.Allocate(4 * kMega, kNow + BlockCache::kLongestWait + std::chrono::seconds(1));
  EXPECT_EQ(cache.bytes_waiting(), 50 * kMega);
}

TEST(BlockCacheTest, LeavesTheRestToMalloc) {
  BlockCache cache;
  EXPECT_EQ(cache.Allocate(BlockCache::kMinBytes - 1, kNow), nullptr);
  EXPECT_EQ(cache.Allocate(SIZE_MAX - 5, kNow), nullptr);
  EXPECT_EQ(cache.Allocate(SIZE_MAX / 4, kNow), nullptr) << "there is not so much memory";
  EXPECT_EQ(cache.bytes_in_use(), 0u);
  alignas(BlockCache::kAlignment) static char foreign[16];
  EXPECT_FALSE(cache.Free(foreign, kNow));
  EXPECT_FALSE(cache.Free(foreign + 8, kNow));
}

TEST(BlockCacheTest, ManyThreads) {
  BlockCache cache;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&cache, t] {
      for (int i = 0; i < 50; ++i) {
        char* const block = static_cast<char*>(cache.Allocate((4 + i % 5) * kMega, Clock::now()));
        block[0] = static_cast<char>(t);
        block[4 * kMega - 1] = static_cast<char>(i);
        EXPECT_EQ(block[0], t);
        EXPECT_TRUE(cache.Free(block, Clock::now()));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(cache.bytes_in_use(), 0u);
}

}  // namespace
}  // namespace tfmpi
