#ifndef TENSORFLOW_PATCHES_PORTABLE_CLOCK_WAIT_H_
#define TENSORFLOW_PATCHES_PORTABLE_CLOCK_WAIT_H_

#include <pthread.h>
#include <time.h>

#include <cerrno>

namespace tfmpi {

// pthread_cond_clockwait for a glibc without it: waits by the real-time clock, as libstdc++ does on
// such systems. If that clock jumps, a wait gets longer or shorter; if shorter,
// std::condition_variable, which checks its own clock, reports a spurious wakeup.
inline int WaitByRealTimeClock(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                               const timespec* until) {
  constexpr long kSecond = 1'000'000'000;  // in nanoseconds
  timespec now{};
  timespec real{};
  if (clock_gettime(clock, &now) != 0 || clock_gettime(CLOCK_REALTIME, &real) != 0) return EINVAL;
  timespec deadline{real.tv_sec + until->tv_sec - now.tv_sec,
                    real.tv_nsec + until->tv_nsec - now.tv_nsec};
  while (deadline.tv_nsec < 0) deadline = {deadline.tv_sec - 1, deadline.tv_nsec + kSecond};
  while (deadline.tv_nsec >= kSecond) deadline = {deadline.tv_sec + 1, deadline.tv_nsec - kSecond};
  if (deadline.tv_sec < 0) deadline = {0, 0};
  return pthread_cond_timedwait(condition, mutex, &deadline);
}

}  // namespace tfmpi

#endif  // TENSORFLOW_PATCHES_PORTABLE_CLOCK_WAIT_H_
