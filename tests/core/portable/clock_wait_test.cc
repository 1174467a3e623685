// Waits on a machine whose glibc is older than 2.30, which has no pthread_cond_clockwait.

#include "tensorflow_patches/portable/clock_wait.h"

#include <chrono>
#include <thread>

#include "gtest/gtest.h"

namespace tfmpi {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

class ClockWaitTest : public testing::Test {
 protected:
  // What the wait returns if it may take `limit`.
  int Wait(milliseconds limit) {
    const auto until = (steady_clock::now() + limit).time_since_epoch();
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(until);
    const timespec moment{seconds.count(), std::chrono::nanoseconds(until - seconds).count()};
    return WaitByRealTimeClock(&condition_, &mutex_, CLOCK_MONOTONIC, &moment);
  }

  pthread_cond_t condition_ = PTHREAD_COND_INITIALIZER;
  pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
};

TEST_F(ClockWaitTest, EndsWithinItsTime) {
  pthread_mutex_lock(&mutex_);
  // Each fraction of a second: of the two clocks' nanoseconds either may be larger.
  for (int i = 0; i < 12; ++i) {
    const auto start = steady_clock::now();
    EXPECT_EQ(Wait(milliseconds(100)), ETIMEDOUT);
    const auto taken = steady_clock::now() - start;
    EXPECT_GE(taken, milliseconds(95));
    EXPECT_LT(taken, milliseconds(900));
  }
  EXPECT_EQ(Wait(milliseconds(-5000)), ETIMEDOUT);  // over before it has begun
  pthread_mutex_unlock(&mutex_);
}

TEST_F(ClockWaitTest, IsNotified) {
  pthread_mutex_lock(&mutex_);
  std::thread other([this] {
    pthread_mutex_lock(&mutex_);  // had when the wait has begun
    pthread_cond_signal(&condition_);
    pthread_mutex_unlock(&mutex_);
  });
  EXPECT_EQ(Wait(std::chrono::minutes(1)), 0);
  pthread_mutex_unlock(&mutex_);
  other.join();
}

}  // namespace
}  // namespace tfmpi
