// The memory that the ranks of one node share, and how they wait for each other. A `rank` here is a
// local rank.
//
// A NodeMemory is used on the communication thread of the rank it was created for; any thread may
// call Wake. The code that maps the memory (core/transport/mpi, or a test) owns it. Its first
// BytesToClear bytes are zero before a rank uses it, and it outlives every NodeMemory. Everything
// in it is addressed by offset, and every word that two ranks may access at the same time is
// atomic, so ranks may be processes or threads.

#ifndef TFMPI_CORE_TRANSPORT_SHM_NODE_MEMORY_H_
#define TFMPI_CORE_TRANSPORT_SHM_NODE_MEMORY_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "tensorflow_patches/core/base/types.h"
#include "tensorflow_patches/core/transport/transport.h"

namespace tfmpi {

inline constexpr size_t kCacheLine = 64;

// One direction of control messages between two ranks: a ring of bytes, one writer and one reader.
struct ControlRing {
  static constexpr size_t kBytes = size_t{32} << 10;

  alignas(kCacheLine) std::atomic<uint64_t> written;  // bytes so far, set by the writer
  alignas(kCacheLine) std::atomic<uint64_t> read;     // bytes so far, set by the reader
  alignas(kCacheLine) char data[kBytes];

  // Both move as many bytes as they can without waiting, and return how many.
  size_t Write(const char* from, size_t bytes);
  size_t Read(char* to, size_t bytes);
  size_t Readable() const;
};

// What a sleeping rank must be notified of.
enum class SleepState : uint32_t {
  kAwake = 0,  // nothing
  kBetween,    // between two operations: messages, votes, requests
  kInside,     // inside an operation: additionally the progress of peers in it
};

// One rank's part of the shared state. Counters only increase, over all operations of the group.
struct RankState {
  // Written by this rank, read by its peers.
  alignas(kCacheLine) std::atomic<uint64_t> put;  // chunks that it has written to its slots
  std::atomic<uint64_t> reduced;                  // chunks of which it has reduced its share
  std::atomic<uint64_t> taken;  // chunks for which it needs no peer's slot any more
  // A futex on which this rank sleeps; Notify increments it.
  alignas(kCacheLine) std::atomic<uint32_t> notifications;
  std::atomic<SleepState> sleep_state;
  // Transport::SharedWord: used only in the state of the node's first rank.
  alignas(kCacheLine) std::atomic<uint64_t> word;
  // Transport::SharedNumbers: written by this rank.
  alignas(kCacheLine) std::atomic<int64_t> numbers[Transport::kSharedNumbers];
  // Between this rank, which writes to_leader, and the node's first rank, which writes from_leader;
  // unused in the state of the first rank itself.
  ControlRing to_leader;
  ControlRing from_leader;
};

class NodeMemory {
 public:
  // How many chunks a rank may be ahead of its slowest peer.
  static constexpr size_t kSlots = 4;

  // The total size for `ranks` ranks, and how much of its beginning must be zero initially.
  static size_t BytesFor(int ranks);
  static size_t BytesToClear(int ranks) { return ranks * sizeof(RankState); }

  // For one of the node's `ranks` ranks, which can use `cores` cores together.
  NodeMemory(void* memory, int rank, int ranks, int cores);

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  RankState& state(int rank) const { return states_[rank]; }
  RankState& mine() const { return states_[rank_]; }
  size_t slot_bytes() const { return slot_bytes_; }
  // Where `rank` puts its data of chunk number `chunk`, counted over all operations.
  char* slot(int rank, uint64_t chunk) const {
    return slots_ + (rank * kSlots + chunk % kSlots) * slot_bytes_;
  }

  // Call it after a change: wakes `rank` if its sleep state is `least` or a later one. Waking costs
  // both ranks some microseconds, so progress inside an operation wakes only ranks that are in it.
  void Notify(int rank, SleepState least = SleepState::kBetween) const;
  void NotifyPeers(SleepState least) const;
  // Any thread: ends the sleep of this rank's communication thread, also one that it has announced
  // (SpinWait::Pause) but not begun.
  void Wake() const { Notify(rank_); }

  // More ranks than cores: then a rank that spins may keep the rank it waits for from running.
  bool crowded() const { return crowded_; }

 private:
  const int rank_;
  const int ranks_;
  const size_t slot_bytes_;
  RankState* const states_;
  char* const slots_;
  const bool crowded_;
};

// A wait for a condition that the caller checks between pauses: polls for a while, then sleeps
// until this rank is notified or `limit` has passed.
//
//   SpinWait wait(memory, SleepState::kInside, spin);
//   while (!there) wait.Pause(limit);
class SpinWait {
 public:
  // Polls for `spin` before it sleeps; not at all if the node is crowded.
  SpinWait(const NodeMemory& memory, SleepState sleep, Clock::duration spin);
  ~SpinWait() { WakeUp(); }
  SpinWait(const SpinWait&) = delete;
  SpinWait& operator=(const SpinWait&) = delete;

  // The first pause that would sleep only announces the sleep and returns: the caller must check
  // once more, since a change may have come before others could see that it waits. Returns false if
  // so little time has passed that the caller need not read the clock.
  bool Pause(Clock::duration limit);
  // Something has happened: polls again before the next sleep.
  void Reset();

 private:
  void WakeUp();

  const NodeMemory& memory_;
  const SleepState sleep_;
  const Clock::duration spin_;
  TimePoint spin_until_;
  int polls_ = 0;
  bool sleeping_ = false;
  uint32_t notifications_seen_ = 0;  // when the sleep was announced
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_TRANSPORT_SHM_NODE_MEMORY_H_
