// Which blocks wait, for whom, and what happens when there is no room.

#include "tensorflow_patches/core/small_blocks.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace tfmpi {
namespace {

constexpr size_t kMega = size_t{1} << 20;

// The allocator: counts what it has out.
std::atomic<int> g_out{0};

void* Make(size_t bytes) {
  ++g_out;
  return std::aligned_alloc(SmallBlocks::kUnit, SmallBlocks::Rounded(bytes));
}

void Release(void* block) {
  --g_out;
  std::free(block);
}

class SmallBlocksTest : public testing::Test {
 protected:
  SmallBlocksTest() { g_out = 0; }
  ~SmallBlocksTest() override { EXPECT_EQ(g_out, 0) << "blocks were lost, or released twice"; }
};

TEST_F(SmallBlocksTest, ABlockServesWhatNeedsAsMuch) {
  MemoryBudget budget(64 * kMega);
  SmallBlocks blocks(&budget, Release);
  EXPECT_EQ(blocks.Take(100), nullptr);
  void* const block = Make(100);  // 128 bytes
  ASSERT_TRUE(blocks.Keep(block, 136));
  EXPECT_EQ(blocks.bytes_waiting(), 128u);
  EXPECT_EQ(blocks.Take(64), nullptr);
  EXPECT_EQ(blocks.Take(129), nullptr);
  EXPECT_EQ(blocks.Take(65), block);
  EXPECT_EQ(blocks.bytes_waiting(), 0u);
  EXPECT_EQ(blocks.Take(65), nullptr);
  Release(block);
}

TEST_F(SmallBlocksTest, TheOneFreedLastComesFirst) {
  MemoryBudget budget(64 * kMega);
  SmallBlocks blocks(&budget, Release);
  void* const first = Make(4096);
  void* const second = Make(4096);
  ASSERT_TRUE(blocks.Keep(first, 4104));
  ASSERT_TRUE(blocks.Keep(second, 4104));
  EXPECT_EQ(blocks.Take(4096), second);
  EXPECT_EQ(blocks.Take(4096), first);
  Release(first);
  Release(second);
}

TEST_F(SmallBlocksTest, WhatDoesNotFitIsTheAllocators) {
  MemoryBudget budget(64 * kMega);
  SmallBlocks blocks(&budget, Release);
  char* const block = static_cast<char*>(Make(2 * SmallBlocks::kMostBytes));
  EXPECT_FALSE(blocks.Keep(block, 2 * SmallBlocks::kMostBytes)) << "too large";
  EXPECT_FALSE(blocks.Keep(block, SmallBlocks::kUnit - 1)) << "too small";
  EXPECT_FALSE(blocks.Keep(block + 16, 256)) << "not aligned";
  EXPECT_EQ(blocks.Take(2 * SmallBlocks::kMostBytes), nullptr);
  EXPECT_EQ(blocks.Take(0), nullptr);
  EXPECT_EQ(blocks.bytes_waiting(), 0u);
  ASSERT_TRUE(blocks.Keep(block, SmallBlocks::kMostBytes + 8));
  EXPECT_EQ(blocks.Take(SmallBlocks::kMostBytes), block);
  Release(block);
}

TEST_F(SmallBlocksTest, WithoutRoomAllThatWaitAreReleased) {
  MemoryBudget budget(2 * SmallBlocks::kClaim);
  SmallBlocks blocks(&budget, Release);
  const int room = static_cast<int>(2 * SmallBlocks::kClaim / 4096);
  for (int i = 0; i < room; ++i) ASSERT_TRUE(blocks.Keep(Make(4096), 4104));
  EXPECT_EQ(blocks.bytes_waiting(), 2 * SmallBlocks::kClaim);
  EXPECT_EQ(g_out, room);
  ASSERT_TRUE(blocks.Keep(Make(128), 136));
  EXPECT_EQ(blocks.bytes_waiting(), 128u);
  EXPECT_EQ(g_out, 1);
  EXPECT_EQ(blocks.Take(4096), nullptr);
}

TEST_F(SmallBlocksTest, AThreadKeepsItsMost) {
  MemoryBudget budget(64 * kMega);
  SmallBlocks blocks(&budget, Release);
  size_t most = 0;
  for (int i = 0; i < 3000; ++i) {
    ASSERT_TRUE(blocks.Keep(Make(32768), 32776));
    most = std::max(most, blocks.bytes_waiting());
  }
  EXPECT_EQ(most, SmallBlocks::kMostClaims * SmallBlocks::kClaim);
  EXPECT_EQ(budget.left(), 64 * kMega - most);
}

TEST_F(SmallBlocksTest, ThreadsShareABudgetAndReturnIt) {
  MemoryBudget budget(SmallBlocks::kClaim);
  {
    SmallBlocks first(&budget, Release);
    SmallBlocks second(&budget, Release);
    ASSERT_TRUE(first.Keep(Make(64), 72));
    void* const block = Make(64);
    EXPECT_FALSE(second.Keep(block, 72));
    Release(block);
    EXPECT_EQ(budget.left(), 0u);
  }
  EXPECT_EQ(budget.left(), SmallBlocks::kClaim);
}

TEST_F(SmallBlocksTest, ManyThreadsClaimNoMoreThanThereIs) {
  MemoryBudget budget(3 * SmallBlocks::kClaim);
  std::atomic<size_t> claimed{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 1000; ++round) {
        if (!budget.Claim(SmallBlocks::kClaim)) continue;
        EXPECT_LE(claimed += SmallBlocks::kClaim, 3 * SmallBlocks::kClaim);
        claimed -= SmallBlocks::kClaim;
        budget.Return(SmallBlocks::kClaim);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(budget.left(), 3 * SmallBlocks::kClaim);
}

// No block is given out twice, whatever sizes come in whatever order.
TEST_F(SmallBlocksTest, NoBlockIsInTwoHands) {
  MemoryBudget budget(64 * kMega);
  SmallBlocks blocks(&budget, Release);
  std::vector<std::pair<void*, size_t>> held;
  std::set<void*> distinct;
  uint32_t random = 1;
  for (int i = 0; i < 20000; ++i) {
    random = random * 1664525u + 1013904223u;
    if (random >> 31 != 0 && !held.empty()) {
      const size_t at = (random >> 8) % held.size();
      const auto [block, bytes] = held[at];
      for (size_t k = 0; k < bytes; k += SmallBlocks::kUnit) {
        ASSERT_EQ(static_cast<unsigned char*>(block)[k], static_cast<unsigned char>(bytes));
      }
      held[at] = held.back();
      held.pop_back();
      distinct.erase(block);
      if (!blocks.Keep(block, SmallBlocks::Rounded(bytes) + 8)) Release(block);
    } else {
      const size_t bytes = 1 + (random >> 8) % 5000;
      void* block = blocks.Take(bytes);
      if (block == nullptr) block = Make(bytes);
      ASSERT_TRUE(distinct.insert(block).second);
      std::memset(block, static_cast<int>(bytes), SmallBlocks::Rounded(bytes));
      held.push_back({block, bytes});
    }
  }
  for (const auto& [block, bytes] : held) Release(block);
}

}  // namespace
}  // namespace tfmpi
