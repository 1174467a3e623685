// The clock that all waits use, and the ways to wait: Sleep, Relax, WaitForChange.
//
// Any thread. A test that runs all ranks in turns on one thread installs a World in place of the
// machine's clock, while no engine exists; the test then decides how time passes and who runs.

#ifndef TFMPI_CORE_BASE_CLOCK_H_
#define TFMPI_CORE_BASE_CLOCK_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

namespace tfmpi {

class Clock {
 public:
  // The members that the standard requires of a clock.
  using duration = std::chrono::steady_clock::duration;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::steady_clock::time_point;
  static constexpr bool is_steady = true;

  class World {
   public:
    virtual time_point Now() = 0;
    virtual void Sleep(duration time) = 0;
    // Called between two reads of a word that another rank may change.
    virtual void Relax() = 0;
    // Returns when the word differs from `value`, another rank notifies, or `limit` has passed.
    virtual void WaitForChange(const std::atomic<uint32_t>& word, uint32_t value,
                               duration limit) = 0;

   protected:
    ~World() = default;
  };

  static time_point now() {
    World* const world = world_.load(std::memory_order_relaxed);
    return world == nullptr ? std::chrono::steady_clock::now() : world->Now();
  }
  static void Sleep(duration time) {
    World* const world = world_.load(std::memory_order_relaxed);
    if (world != nullptr) return world->Sleep(time);
    std::this_thread::sleep_for(time);
  }
  // Pauses for tens to hundreds of cycles, so that the core's other hardware thread can run.
  static void Relax() {
    World* const world = world_.load(std::memory_order_relaxed);
    if (world != nullptr) return world->Relax();
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }

  // Whether now() is the machine's time, with which processor time can be compared.
  static bool IsReal() { return world_.load(std::memory_order_relaxed) == nullptr; }

  // Calls World::WaitForChange. Returns false if there is no World: the caller must wait itself.
  static bool WaitForChange(const std::atomic<uint32_t>& word, uint32_t value, duration limit) {
    World* const world = world_.load(std::memory_order_relaxed);
    if (world != nullptr) world->WaitForChange(word, value, limit);
    return world != nullptr;
  }

  // Null: the machine's clock. The caller keeps ownership.
  static void Use(World* world) { world_ = world; }

 private:
  inline static std::atomic<World*> world_{nullptr};
};

using TimePoint = Clock::time_point;

}  // namespace tfmpi

#endif  // TFMPI_CORE_BASE_CLOCK_H_
