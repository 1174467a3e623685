// Hides a simulation's own work from ThreadSanitizer, so that its locks order nothing. Only
// HappensBefore and HappensAfter do. So a wait that the code under test lacks is reported as a data
// race.

#ifndef TFMPI_TESTS_CORE_DEVICE_UNSEEN_H_
#define TFMPI_TESTS_CORE_DEVICE_UNSEEN_H_

#include <condition_variable>
#include <mutex>

#if defined(__SANITIZE_THREAD__)
extern "C" {
void AnnotateIgnoreSyncBegin(const char* file, int line);
void AnnotateIgnoreSyncEnd(const char* file, int line);
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
void __tsan_acquire(void* address);
void __tsan_release(void* address);
}
#endif

namespace tfmpi {

// While one exists, ThreadSanitizer ignores this thread. They cannot be nested.
class Unseen {
 public:
  Unseen() { Begin(); }
  ~Unseen() { End(); }
  Unseen(const Unseen&) = delete;
  Unseen& operator=(const Unseen&) = delete;

 private:
  friend void HappensBefore(void* moment);
  friend void HappensAfter(void* moment);

  static void Begin() {
#if defined(__SANITIZE_THREAD__)
    AnnotateIgnoreSyncBegin(__FILE__, __LINE__);
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
    within_ = true;
#endif
  }
  static void End() {
#if defined(__SANITIZE_THREAD__)
    within_ = false;
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    AnnotateIgnoreSyncEnd(__FILE__, __LINE__);
#endif
  }

#if defined(__SANITIZE_THREAD__)
  inline static thread_local bool within_ = false;
#endif
};

// `moment` is any object of the simulation, which stands for a point in time. ThreadSanitizer sees
// these calls inside an Unseen, too.
inline void HappensBefore([[maybe_unused]] void* moment) {
#if defined(__SANITIZE_THREAD__)
  const bool within = Unseen::within_;
  if (within) Unseen::End();
  __tsan_release(moment);
  if (within) Unseen::Begin();
#endif
}
inline void HappensAfter([[maybe_unused]] void* moment) {
#if defined(__SANITIZE_THREAD__)
  const bool within = Unseen::within_;
  if (within) Unseen::End();
  __tsan_acquire(moment);
  if (within) Unseen::Begin();
#endif
}

// A lock that ThreadSanitizer does not see.
class UnseenLock {
 public:
  explicit UnseenLock(std::mutex& mutex) : lock_(mutex) {}

  // No timed wait: ThreadSanitizer of GCC 12 does not know the function behind it.
  template <typename Predicate>
  void Wait(std::condition_variable& changed, const Predicate& predicate) {
    changed.wait(lock_, predicate);
  }

 private:
  Unseen unseen_;
  std::unique_lock<std::mutex> lock_;
};

}  // namespace tfmpi

#endif  // TFMPI_TESTS_CORE_DEVICE_UNSEEN_H_
