// The right to touch what one thread alone may touch: that thread has it from Take to GiveUp.
//
// It is no lock: nobody waits for it, as nobody else ever wants it. Clang checks that what it
// guards is touched only by functions that require it; where the checker cannot follow, builds with
// assertions compare threads.

#ifndef TFMPI_CORE_BASE_THREAD_ROLE_H_
#define TFMPI_CORE_BASE_THREAD_ROLE_H_

#include <atomic>
#include <cassert>
#include <thread>

#include "tensorflow_patches/core/base/thread_annotations.h"

namespace tfmpi {

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

  // Who calls this is called by the thread that has the role, by ways that the checker cannot see.
  void AssertMine() const TFMPI_ASSERT_CAPABILITY(this) { assert(IsMine()); }
  // The thread has ended, and whoever has joined it may go on in its place.
  void AssertGivenUp() const TFMPI_ASSERT_CAPABILITY(this) { assert(IsUnowned()); }

 private:
  bool IsUnowned() const { return holder_.load() == std::thread::id(); }

  std::atomic<std::thread::id> holder_{std::thread::id()};
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_BASE_THREAD_ROLE_H_
