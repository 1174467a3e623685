// The right to access data that belongs to one thread: that thread holds it from Take to GiveUp.
//
// This is not a lock: no thread ever waits for it, because no other thread wants it. Clang checks
// that guarded data is accessed only by functions that require the role. Where the checker cannot
// follow, builds with assertions compare thread ids.

#ifndef TFMPI_CORE_BASE_THREAD_ROLE_H_
#define TFMPI_CORE_BASE_THREAD_ROLE_H_

#include <atomic>
#include <cassert>
#include <thread>

#include "tensorflow_patches/core/base/thread_annotations.h"

namespace tfmpi {

// The name of the communication thread in the system and in traces.
inline constexpr char kCommunicationThread[] = "tf_mpi_comm";

class TFMPI_CAPABILITY("role") ThreadRole {
 public:
  void Take() TFMPI_ACQUIRE() {
    assert(IsUnowned());
    holder_ = std::this_thread::get_id();
  }
  void GiveUp() TFMPI_RELEASE() {
    assert(IsMine());
    holder_ = std::thread::id();
  }
  // Any thread.
  bool IsMine() const { return holder_.load() == std::this_thread::get_id(); }

  // For code that only the holder of the role calls, by a path that the checker cannot follow.
  void AssertMine() const TFMPI_ASSERT_CAPABILITY(this) { assert(IsMine()); }
  // The thread has ended; the thread that joined it may now take its place.
  void AssertGivenUp() const TFMPI_ASSERT_CAPABILITY(this) { assert(IsUnowned()); }

 private:
  bool IsUnowned() const { return holder_.load() == std::thread::id(); }

  std::atomic<std::thread::id> holder_{std::thread::id()};
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_BASE_THREAD_ROLE_H_
