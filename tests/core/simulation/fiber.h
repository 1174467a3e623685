// A function with its own stack, which runs in turns with others on one thread.

#ifndef TFMPI_TESTS_CORE_SIMULATION_FIBER_H_
#define TFMPI_TESTS_CORE_SIMULATION_FIBER_H_

#include <ucontext.h>

#include <functional>
#include <memory>

namespace tfmpi {

class Fiber {
 public:
  explicit Fiber(std::function<void()> body);
  // Must have ended, or never have started: objects on its stack are not destroyed.
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Runs it until it yields or ends. Not from within a fiber.
  void Resume();
  // From within it: returns to the caller of Resume.
  void Yield();
  bool ended() const { return ended_; }

 private:
  static void Enter(unsigned high, unsigned low);
  void SwitchIn();
  void SwitchOut(bool for_good);

  const std::function<void()> body_;
  std::unique_ptr<char[]> stack_;
  ucontext_t own_;
  ucontext_t caller_;
  bool begun_ = false;
  bool ended_ = false;
  // For AddressSanitizer, which must know which stack is in use.
  void* own_fake_stack_ = nullptr;
  void* caller_fake_stack_ = nullptr;
  const void* caller_stack_ = nullptr;
  size_t caller_stack_bytes_ = 0;
};

}  // namespace tfmpi

#endif  // TFMPI_TESTS_CORE_SIMULATION_FIBER_H_
