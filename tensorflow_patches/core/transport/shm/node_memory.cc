#include "tensorflow_patches/core/transport/shm/node_memory.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <ctime>

#include "tensorflow_patches/core/base/clock.h"
#include "tensorflow_patches/core/base/sizes.h"

namespace tfmpi {
namespace {

size_t SlotBytes(int ranks) {
  const size_t fair = kMaxChunksBytes / (NodeMemory::kSlots * ranks) / kCacheLine * kCacheLine;
  // At least a cache line for each rank's share.
  return std::max({std::min(kChunkBytes, fair), kMinChunkBytes, kCacheLine * ranks});
}

// Not FUTEX_PRIVATE: the ranks are processes.
void FutexWait(std::atomic<uint32_t>* word, uint32_t value, Clock::duration limit) {
  if (Clock::WaitForChange(*word, value, limit)) return;  // in tests
  const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(limit).count();
  const timespec time = {ns / 1'000'000'000, ns % 1'000'000'000};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAIT, value, &time, nullptr, 0);
}

void FutexWake(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

}  // namespace

// Both counters can have any value if an unrelated process has written here; even then nothing
// outside the ring may be accessed.
size_t ControlRing::Write(const char* from, size_t bytes) {
  const uint64_t start = written.load(std::memory_order_relaxed);
  const uint64_t used = start - read.load(std::memory_order_acquire);
  const size_t room = used < kBytes ? kBytes - static_cast<size_t>(used) : 0;
  const size_t n = std::min(bytes, room);
  const size_t first = std::min(n, kBytes - start % kBytes);
  std::memcpy(data + start % kBytes, from, first);
  std::memcpy(data, from + first, n - first);
  written.store(start + n, std::memory_order_seq_cst);
  return n;
}

size_t ControlRing::Read(char* to, size_t bytes) {
  const uint64_t start = read.load(std::memory_order_relaxed);
  const size_t n = std::min(bytes, Readable());
  const size_t first = std::min(n, kBytes - start % kBytes);
  std::memcpy(to, data + start % kBytes, first);
  std::memcpy(to + first, data, n - first);
  read.store(start + n, std::memory_order_seq_cst);
  return n;
}

size_t ControlRing::Readable() const {
  const uint64_t used =
      written.load(std::memory_order_seq_cst) - read.load(std::memory_order_seq_cst);
  return static_cast<size_t>(std::min<uint64_t>(used, kBytes));
}

size_t NodeMemory::BytesFor(int ranks) {
  return ranks * (sizeof(RankState) + kSlots * SlotBytes(ranks));
}

NodeMemory::NodeMemory(void* memory, int rank, int ranks, int cores)
    : rank_(rank),
      ranks_(ranks),
      slot_bytes_(SlotBytes(ranks)),
      states_(static_cast<RankState*>(memory)),
      slots_(static_cast<char*>(memory) + ranks * sizeof(RankState)),
      crowded_(ranks > cores) {}

void NodeMemory::Notify(int rank, SleepState least) const {
  RankState& state = states_[rank];
  if (state.sleep_state.load(std::memory_order_seq_cst) < least) return;
  state.notifications.fetch_add(1, std::memory_order_seq_cst);
  FutexWake(&state.notifications);
}

void NodeMemory::NotifyPeers(SleepState least) const {
  for (int i = 1; i < ranks_; ++i) Notify((rank_ + i) % ranks_, least);
}

SpinWait::SpinWait(const NodeMemory& memory, SleepState sleep, Clock::duration spin)
    : memory_(memory), sleep_(sleep), spin_(memory.crowded() ? Clock::duration::zero() : spin) {}

bool SpinWait::Pause(Clock::duration limit) {
  constexpr int kPollsPerClockRead = 32;
  if (sleeping_) {
    FutexWait(&memory_.mine().notifications, notifications_seen_, limit);
    WakeUp();
    return true;
  }
  if (spin_.count() != 0) {
    Clock::Relax();
    if (++polls_ % kPollsPerClockRead != 0) return false;
    const TimePoint now = Clock::now();
    if (polls_ == kPollsPerClockRead) spin_until_ = now + spin_;
    if (now < spin_until_) return true;
  }
  notifications_seen_ = memory_.mine().notifications.load(std::memory_order_seq_cst);
  memory_.mine().sleep_state.store(sleep_, std::memory_order_seq_cst);
  sleeping_ = true;
  return true;
}

void SpinWait::Reset() {
  WakeUp();
  polls_ = 0;
}

void SpinWait::WakeUp() {
  if (sleeping_) memory_.mine().sleep_state.store(SleepState::kAwake, std::memory_order_seq_cst);
  sleeping_ = false;
}

}  // namespace tfmpi
