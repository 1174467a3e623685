// Who may work in the engine: one thread at a time.
//
// A mutex that can be waited for with an end, in std::unique_lock's terms.

#ifndef TFMPI_CORE_BASE_PROGRESS_LOCK_H_
#define TFMPI_CORE_BASE_PROGRESS_LOCK_H_

#include <condition_variable>
#include <mutex>

#include "tensorflow_patches/core/base/types.h"

namespace tfmpi {

class ProgressLock {
 public:
  void lock() {
    std::unique_lock<std::mutex> lock(mutex_);
    given_up_.wait(lock, [this] { return !taken_; });
    taken_ = true;
  }
  bool try_lock_for(Clock::duration limit) {
    std::unique_lock<std::mutex> lock(mutex_);
    // Without a look at the clock where nobody has it.
    if (taken_ && !given_up_.wait_for(lock, limit, [this] { return !taken_; })) return false;
    return taken_ = true;
  }
  void unlock() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      taken_ = false;
    }
    given_up_.notify_one();
  }

 private:
  std::mutex mutex_;
  std::condition_variable given_up_;
  bool taken_ = false;  // guarded by mutex_
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_BASE_PROGRESS_LOCK_H_
