// How a rank writes the data that its peers read: through its caches, or bypassing them.
//
// If the cores of two ranks share a cache, a line is fastest written and read in that cache. If
// they do not (other chiplets, other sockets), the line must first be taken back from the core that
// has read it; writes that bypass the caches avoid that for whole lines. Each rank decides by
// itself, timing a chunk both ways from time to time: the cores of a virtual machine may be near
// each other in one minute and far apart in the next. docs/decisions/024 has the times.
//
// Communication thread only.

#ifndef TFMPI_CORE_TRANSPORT_SHM_CHUNK_WRITER_H_
#define TFMPI_CORE_TRANSPORT_SHM_CHUNK_WRITER_H_

#include <cstddef>
#include <cstring>

#include "tensorflow_patches/core/base/types.h"
#include "tensorflow_patches/core/cpu/stream_copy.h"

namespace tfmpi {

// kAuto: each rank decides. kCached: the extra streaming_stores is off. kStreamed: for tests.
enum class Stores { kAuto = 0, kCached = 1, kStreamed = 2 };

// Compares the times of two copies of one size, first a cached, then a streamed one. Times are
// arguments, so tests need no clock.
class StoreTrials {
 public:
  enum class Way { kBestKnown, kTryCached, kTryStreamed };

  // How to write the next chunk. If it is a trial, time it and call Record.
  Way Next(size_t bytes);
  void Record(size_t bytes, Clock::duration time);
  bool streams() const { return streams_; }

  static constexpr int kChunksBetweenTrials = 128;

 private:
  // Smaller chunks are written too quickly for the clock's resolution.
  static constexpr size_t kMinBytes = size_t{4} << 10;
  // The cores share no cache if a cached copy takes longer than this many streamed copies.
  static constexpr int kTimesSlower = 4;

  bool streams_ = false;
  bool contradicted_ = false;      // the last trial contradicted streams_
  size_t cached_bytes_ = 0;        // of the trial's cached copy; 0: none has been timed yet
  Clock::duration cached_time_{};  // of that copy
  int wait_ = 0;                   // chunks until the next trial, or until this one is abandoned
};

class ChunkWriter {
 public:
  using Copy = void (*)(void* to, const void* from, size_t bytes);

  explicit ChunkWriter(Stores stores) : stores_(stores) {}

  // Whether to bypass the caches for a chunk of this size.
  bool Streams(size_t bytes) const {
    if (stores_ == Stores::kAuto) return trials_.streams() && bytes >= kMinStreamed;
    return stores_ == Stores::kStreamed;
  }

  // How to write the next chunk, of `bytes` bytes. Pass the plan to Put.
  struct Plan {
    size_t bytes;
    bool streams;
    bool timed;
    // Whether the data may be produced directly in the slot.
    bool needs_no_copy() const { return !streams && !timed; }
  };
  Plan Next(size_t bytes) {
    using Way = StoreTrials::Way;
    const Way way = stores_ == Stores::kAuto ? trials_.Next(bytes) : Way::kBestKnown;
    if (way == Way::kBestKnown) return {bytes, Streams(bytes), false};
    return {bytes, way == Way::kTryStreamed, true};
  }
  // `write` is called with a Copy, with which it copies the chunk into the slot.
  template <typename Write>
  void Put(const Plan& plan, const Write& write) {
    const TimePoint start = plan.timed ? Clock::now() : TimePoint();
    write(plan.streams ? &StreamCopy : &CachedCopy);
    if (plan.streams) EndStreams();
    if (plan.timed) trials_.Record(plan.bytes, Clock::now() - start);
  }
  template <typename Write>
  void Put(size_t bytes, const Write& write) {
    Put(Next(bytes), write);
  }

 private:
  // For smaller chunks, most of the time is the wait until they are in memory.
  static constexpr size_t kMinStreamed = size_t{2} << 10;

  static void CachedCopy(void* to, const void* from, size_t bytes) {
    if (bytes != 0) std::memcpy(to, from, bytes);
  }

  const Stores stores_;
  StoreTrials trials_;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_TRANSPORT_SHM_CHUNK_WRITER_H_
