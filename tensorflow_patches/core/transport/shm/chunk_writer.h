// How a rank writes what its peers read: through its caches, or past them.
//
// Where the cores of two ranks share a cache, a line is quickest written where it lies, and read
// from there. Where they do not (other chiplets, other sockets), it must first be taken back from
// the core that has read it; past the caches, whole lines are written without that. Each rank finds
// out for itself, by timing a chunk in both ways now and then: a virtual machine's cores may be
// near each other in one minute and far in the next. docs/decisions/024 has the times.
//
// Communication thread only.

#ifndef TFMPI_CORE_TRANSPORT_SHM_CHUNK_WRITER_H_
#define TFMPI_CORE_TRANSPORT_SHM_CHUNK_WRITER_H_

#include <cstddef>
#include <cstring>

#include "tensorflow_patches/core/base/types.h"
#include "tensorflow_patches/core/cpu/stream_copy.h"

namespace tfmpi {

// kAuto: as each rank finds out, an extra; kCached without it. kStreamed is for tests.
enum class Stores { kAuto = 0, kCached = 1, kStreamed = 2 };

// Judges by the time of two copies of one size, one after the other. Takes times as arguments, so
// tests need no clock.
class StoreTrials {
 public:
  enum class Way { kBestKnown, kTryCached, kTryStreamed };

  // How the next chunk is to be written: one that is tried is to be timed, and Record called.
  Way Next(size_t bytes);
  void Record(size_t bytes, Clock::duration time);
  bool streams() const { return streams_; }

  static constexpr int kBetween = 128;  // chunks

 private:
  // Smaller ones take as long as the clock is exact.
  static constexpr size_t kMinBytes = size_t{4} << 10;
  // Cores that share a cache take less than that, others more.
  static constexpr int kTimesSlower = 4;

  bool streams_ = false;
  bool contradicted_ = false;  // the last trial was against streams_
  size_t cached_bytes_ = 0;    // 0: no cached copy has been timed in this trial
  Clock::duration cached_{};   // the time of it
  int wait_ = 0;               // chunks until the next trial; or until this one is given up
};

class ChunkWriter {
 public:
  using Copy = void (*)(void* to, const void* from, size_t bytes);

  explicit ChunkWriter(Stores stores) : stores_(stores) {}

  // Whether so much at a time is to be written past the caches.
  bool Streams(size_t bytes) const {
    if (stores_ == Stores::kAuto) return trials_.streams() && bytes >= kMinStreamed;
    return stores_ == Stores::kStreamed;
  }

  // How the next chunk, of `bytes` bytes, is to be written: to be given to Put.
  struct Plan {
    size_t bytes;
    bool streams;
    bool timed;
    // Who makes the data may make it in the slot.
    bool needs_no_copy() const { return !streams && !timed; }
  };
  Plan Next(size_t bytes) {
    using Way = StoreTrials::Way;
    const Way way = stores_ == Stores::kAuto ? trials_.Next(bytes) : Way::kBestKnown;
    if (way == Way::kBestKnown) return {bytes, Streams(bytes), false};
    return {bytes, way == Way::kTryStreamed, true};
  }
  // `write`, given a Copy, copies the chunk into the slot.
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
  // Of fewer, the wait until they are in memory is the most.
  static constexpr size_t kMinStreamed = size_t{2} << 10;

  static void CachedCopy(void* to, const void* from, size_t bytes) {
    if (bytes != 0) std::memcpy(to, from, bytes);
  }

  const Stores stores_;
  StoreTrials trials_;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_TRANSPORT_SHM_CHUNK_WRITER_H_
