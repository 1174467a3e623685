// Functions for threads that glibc 2.34 has moved from libpthread to libc, and two symbols that
// exist only since glibc 2.30 and 2.32.

#include <dlfcn.h>
#include <pthread.h>
#include <time.h>

#include <atomic>

#include "tensorflow_patches/portable/clock_wait.h"
#include "tensorflow_patches/portable/old_version.h"

namespace {

using ClockWait = int (*)(pthread_cond_t*, pthread_mutex_t*, clockid_t, const timespec*);

// glibc's own function, or ours if glibc is older than 2.30.
ClockWait FindClockWait() {
  const auto found = reinterpret_cast<ClockWait>(dlsym(RTLD_DEFAULT, "pthread_cond_clockwait"));
  return found != nullptr ? found : tfmpi::WaitByRealTimeClock;
}

}  // namespace

TFMPI_OLD_VERSION(int, pthread_once, (pthread_once_t * control, void (*call)()), "GLIBC_2.2.5") {
  return old_pthread_once(control, call);
}

TFMPI_OLD_VERSION(int, pthread_setname_np, (pthread_t thread, const char* name), "GLIBC_2.12") {
  return old_pthread_setname_np(thread, name);
}

TFMPI_OLD_VERSION(int, pthread_getname_np, (pthread_t thread, char* name, size_t size),
                  "GLIBC_2.12") {
  return old_pthread_getname_np(thread, name, size);
}

// std::condition_variable uses it to wait by the steady clock.
extern "C" int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                                      clockid_t clock, const timespec* until) {
  // Not initialized by FindClockWait: a process that is forked during that call would wait forever
  // for the static variable's guard.
  static std::atomic<ClockWait> known{nullptr};
  ClockWait wait = known.load(std::memory_order_relaxed);
  if (wait == nullptr) {
    wait = FindClockWait();
    known.store(wait, std::memory_order_relaxed);
  }
  return wait(condition, mutex, clock, until);
}

// Since glibc 2.32. 0 makes libstdc++'s reference counts atomic, which is correct with one thread,
// too.
extern "C" {
char __libc_single_threaded = 0;
}
