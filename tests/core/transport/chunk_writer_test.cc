// How a rank writes what its peers read: copies that bypass the caches, and when they are used.

#include "tensorflow_patches/core/transport/shm/chunk_writer.h"

#include <cstdlib>
#include <memory>
#include <vector>

#include "gtest/gtest.h"

namespace tfmpi {
namespace {

using std::chrono::microseconds;
using Way = StoreTrials::Way;

TEST(StreamCopy, CopiesWhatMemcpyCopies) {
  constexpr size_t kBytes = 1024;
  std::unique_ptr<char, decltype(&std::free)> memory(
      static_cast<char*>(std::aligned_alloc(64, kBytes)), &std::free);
  char* const to = memory.get();
  std::vector<char> from(kBytes);
  for (size_t i = 0; i < kBytes; ++i) from[i] = static_cast<char>(i * 7 + 1);
  for (const size_t offset : {0, 1, 16, 63, 64}) {
    for (const size_t start : {0, 3, 32}) {
      for (const size_t bytes : {0, 1, 63, 64, 65, 500, 512}) {
        std::memset(to, 0, kBytes);
        StreamCopy(to + offset, from.data() + start, bytes);
        EndStreams();
        EXPECT_EQ(std::memcmp(to + offset, from.data() + start, bytes), 0)
            << offset << " " << bytes;
        for (size_t i = 0; i < kBytes; ++i) {
          if (i < offset || i >= offset + bytes) {
            ASSERT_EQ(to[i], 0) << offset << " " << bytes;
          }
        }
      }
    }
  }
}

// Chunks of one size until `trials` trials are over; returns how many chunks that were.
int Try(StoreTrials* trials, size_t bytes, microseconds cached, microseconds streamed, int times) {
  for (int chunk = 1;; ++chunk) {
    const Way way = trials->Next(bytes);
    if (way == Way::kBestKnown) continue;
    trials->Record(bytes, way == Way::kTryCached ? cached : streamed);
    if (way == Way::kTryStreamed && --times == 0) return chunk;
  }
}

constexpr size_t kChunk = size_t{64} << 10;

TEST(StoreTrials, TwoTrialsInARowDecide) {
  StoreTrials trials;
  EXPECT_FALSE(trials.streams());
  Try(&trials, kChunk, microseconds(29), microseconds(3), 1);
  EXPECT_FALSE(trials.streams()) << "it may have been interrupted";
  EXPECT_EQ(Try(&trials, kChunk, microseconds(29), microseconds(3), 1), 2) << "looks again at once";
  EXPECT_TRUE(trials.streams());
  EXPECT_EQ(Try(&trials, kChunk, microseconds(29), microseconds(3), 1),
            StoreTrials::kChunksBetweenTrials + 2);
  Try(&trials, kChunk, microseconds(7), microseconds(3), 2);
  EXPECT_FALSE(trials.streams()) << "the cores have come near each other";
}

TEST(StoreTrials, OneSlowCopyDecidesNothing) {
  StoreTrials trials;
  for (int i = 0; i < 10; ++i) {
    Try(&trials, kChunk, microseconds(900), microseconds(3), 1);
    Try(&trials, kChunk, microseconds(7), microseconds(3), 1);
    EXPECT_FALSE(trials.streams());
  }
}

TEST(StoreTrials, ComparesOnlyCopiesOfOneSize) {
  StoreTrials trials;
  EXPECT_EQ(trials.Next(kChunk), Way::kTryCached);
  trials.Record(kChunk, microseconds(29));
  for (int i = 0; i < StoreTrials::kChunksBetweenTrials; ++i) {
    EXPECT_EQ(trials.Next(kChunk / 2), Way::kBestKnown);
  }
  EXPECT_EQ(trials.Next(kChunk / 2), Way::kTryCached) << "the first size does not come again";
  trials.Record(kChunk / 2, microseconds(7));
  EXPECT_EQ(trials.Next(kChunk / 2), Way::kTryStreamed);
  trials.Record(kChunk / 2, microseconds(3));
  EXPECT_EQ(trials.Next(kChunk / 2), Way::kBestKnown);
}

TEST(StoreTrials, SmallChunksAreNotTimed) {
  StoreTrials trials;
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(trials.Next(1000), Way::kBestKnown);
}

TEST(ChunkWriter, WritesAsItIsTold) {
  EXPECT_FALSE(ChunkWriter(Stores::kCached).Streams(kChunk));
  EXPECT_TRUE(ChunkWriter(Stores::kStreamed).Streams(kChunk));
  EXPECT_TRUE(ChunkWriter(Stores::kCached).Next(kChunk).needs_no_copy());
  EXPECT_FALSE(ChunkWriter(Stores::kStreamed).Next(kChunk).needs_no_copy());
  ChunkWriter judges(Stores::kAuto);
  EXPECT_FALSE(judges.Streams(kChunk)) << "at first";
  EXPECT_FALSE(judges.Next(kChunk).needs_no_copy()) << "it is to be timed";
}

}  // namespace
}  // namespace tfmpi
