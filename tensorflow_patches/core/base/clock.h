// The time of all waits, and what a thread does while it waits.
//
// Any thread. A test that runs all ranks in turns on one thread puts a World of its own in place of
// the machine's, while no engine exists: then time passes, and others run, as that test decides.

#ifndef TFMPI_CORE_BASE_CLOCK_H_
#define TFMPI_CORE_BASE_CLOCK_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

namespace tfmpi {

class Clock {
 public:
  using duration = std::chrono::steady_clock::duration;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::steady_clock::time_point;
  static constexpr bool is_steady = true;

  class World {
   public:
    virtual time_point Now() = 0;
    virtual void Sleep(duration time) = 0;
    // Called between two looks at a word that another rank may change.
    virtual void Relax() = 0;
    // Until the word is another, somebody notifies of it, or `limit` has passed.
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
  // Some tens of cycles, in which the other thread of this core may go on.
  static void Relax() {
    World* const world = world_.load(std::memory_order_relaxed);
    if (world != nullptr) return world->Relax();
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }

  // Whether time is the machine's, in which its processors are seen to work.
  static bool IsReal() { return world_.load(std::memory_order_relaxed) == nullptr; }

  // False: nobody has waited, and the caller does.
  static bool WaitForChange(const std::atomic<uint32_t>& word, uint32_t value, duration limit) {
    World* const world = world_.load(std::memory_order_relaxed);
    if (world != nullptr) world->WaitForChange(word, value, limit);
    return world != nullptr;
  }

  // Null: the machine's. It stays the caller's.
  static void Use(World* world) { world_ = world; }

 private:
  inline static std::atomic<World*> world_{nullptr};
};

using TimePoint = Clock::time_point;

}  // namespace tfmpi

#endif  // TFMPI_CORE_BASE_CLOCK_H_
