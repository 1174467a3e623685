// Who makes progress in the engine: one thread at a time, the communication thread or a caller in
// its place (inline progress).
//
// A mutex that can be waited for with an end. Clang checks that what it guards is touched by its
// holder alone.

#ifndef TFMPI_CORE_BASE_PROGRESS_LOCK_H_
#define TFMPI_CORE_BASE_PROGRESS_LOCK_H_

#include <condition_variable>
#include <mutex>

#include "tensorflow_patches/core/base/thread_annotations.h"
#include "tensorflow_patches/core/base/types.h"

namespace tfmpi {

class TFMPI_CAPABILITY("progress lock") ProgressLock {
 public:
  void lock() TFMPI_ACQUIRE() {
    std::unique_lock<std::mutex> lock(mutex_);
    released_.wait(lock, [this] { return !held_; });
    held_ = true;
  }
  bool try_lock_for(Clock::duration limit) TFMPI_TRY_ACQUIRE(true) {
    std::unique_lock<std::mutex> lock(mutex_);
    // Without a look at the clock where nobody has it.
    if (held_ && !released_.wait_for(lock, limit, [this] { return !held_; })) return false;
    return held_ = true;
  }
  void unlock() TFMPI_RELEASE() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      held_ = false;
    }
    released_.notify_one();
  }
  // For the checker alone: the caller knows that nobody else can hold it.
  void AssertHeld() const TFMPI_ASSERT_CAPABILITY(this) {}

 private:
  std::mutex mutex_;
  std::condition_variable released_;
  bool held_ = false;  // guarded by mutex_
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_BASE_PROGRESS_LOCK_H_
