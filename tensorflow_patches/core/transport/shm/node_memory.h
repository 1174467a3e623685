// The memory that the ranks of one node share, and how they wait for each other in it.
//
// Who calls: the communication thread of the rank it was made for, but for Wake, which any thread
// may call. Who owns: whoever maps the memory (MPI, or a test); it is zero before the first rank
// uses it, and it outlives every NodeMemory on it. All in it is addressed by offset, and every word
// that two ranks touch is atomic, so ranks may be processes or threads.

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

  alignas(kCacheLine) std::atomic<uint64_t> written;  // bytes so far; the writer's
  alignas(kCacheLine) std::atomic<uint64_t> read;     // bytes so far; the reader's
  alignas(kCacheLine) char data[kBytes];

  // Both move what they can without waiting, and say how much that was.
  size_t Write(const char* from, size_t bytes);
  size_t Read(char* to, size_t bytes);
  size_t Readable() const;
};

// Of a rank: what it must be notified for.
enum class SleepState : uint32_t {
  kAwake = 0,  // nothing
  kBetween,    // between two operations: messages, votes, requests
  kInside,     // in an operation: what peers have done in it, too
};

// What one rank says of itself. Counts go up for as long as the group lives, over all operations.
struct RankState {
  // Written by this rank, read by its peers.
  alignas(kCacheLine) std::atomic<uint64_t> put;  // chunks whose data lies in its slots
  std::atomic<uint64_t> reduced;                  // chunks whose share it has reduced
  std::atomic<uint64_t> taken;                    // chunks it needs no peer's slot for any more
  // A futex, notified by peers when something changed that its owner sleeps for.
  alignas(kCacheLine) std::atomic<uint32_t> notifications;
  std::atomic<SleepState> sleep_state;
  // Of the node's first rank alone: Transport::SharedWord.
  alignas(kCacheLine) std::atomic<uint64_t> word;
  alignas(kCacheLine) std::atomic<int64_t> numbers[Transport::kSharedNumbers];
  ControlRing to_leader;
  ControlRing from_leader;
};

class NodeMemory {
 public:
  // Chunks of one operation that a rank may be ahead of its slowest peer.
  static constexpr size_t kSlots = 4;

  // What `ranks` ranks need in all, and how much of it, from the start, must be zero at first.
  static size_t BytesFor(int ranks);
  static size_t BytesToClear(int ranks) { return ranks * sizeof(RankState); }

  // Rank `rank` of the `ranks` ranks of this node, which may use so many cores together.
  NodeMemory(void* memory, int rank, int ranks, int cores);

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  RankState& state(int rank) const { return states_[rank]; }
  RankState& mine() const { return states_[rank_]; }
  size_t slot_bytes() const { return slot_bytes_; }
  // Where `rank` keeps its data of the chunk with this number.
  char* slot(int rank, uint64_t chunk) const {
    return slots_ + (rank * kSlots + chunk % kSlots) * slot_bytes_;
  }

  // After a change: wakes those whose sleep is at least so deep. Waking costs both sides some
  // microseconds, and what peers do in an operation does not concern who has left it.
  void Notify(int rank, SleepState least = SleepState::kBetween) const;
  void NotifyPeers(SleepState least) const;
  // Any thread: ends the sleep of this rank's communication thread, or prevents the next.
  void Wake() const { Notify(rank_); }

  // More ranks than cores: who spins keeps from running whom it waits for.
  bool crowded() const { return crowded_; }

 private:
  const int rank_;
  const int ranks_;
  const size_t slot_bytes_;
  RankState* const states_;
  char* const slots_;
  const bool crowded_;
};

// A wait for something that the caller looks for between two pauses: polls a while, then sleeps
// until a peer notifies or `limit` has passed.
//
//   SpinWait wait(memory, SleepState::kInside, spin);
//   while (!there) wait.Pause(limit);
class SpinWait {
 public:
  // Polls for `spin` before it sleeps; not at all where cores are scarce.
  SpinWait(const NodeMemory& memory, SleepState sleep, Clock::duration spin);
  ~SpinWait() { WakeUp(); }
  SpinWait(const SpinWait&) = delete;
  SpinWait& operator=(const SpinWait&) = delete;

  // The first pause that would sleep returns at once: what happened before others could know of
  // the waiter must be looked for again. False where hardly any time has passed.
  bool Pause(Clock::duration limit);
  // Something was there: polls again before the next sleep.
  void Reset();

 private:
  void WakeUp();

  const NodeMemory& memory_;
  const SleepState sleep_;
  const Clock::duration spin_;
  TimePoint spin_until_;
  int polls_ = 0;
  bool sleeping_ = false;
  uint32_t heard_ = 0;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_TRANSPORT_SHM_NODE_MEMORY_H_
