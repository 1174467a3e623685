#include "tests/core/simulation/fiber.h"

#include <cstdint>
#include <cstdlib>
#include <utility>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace tfmpi {
namespace {

constexpr size_t kStackBytes = size_t{256} << 10;

// Stacks of deleted fibers, for reuse: memory that was touched before costs no page fault.
std::vector<std::unique_ptr<char[]>>& Spare() {
  static auto* const spare = new std::vector<std::unique_ptr<char[]>>;
  return *spare;
}

std::unique_ptr<char[]> TakeStack() {
  if (Spare().empty()) return std::unique_ptr<char[]>(new char[kStackBytes]);
  std::unique_ptr<char[]> stack = std::move(Spare().back());
  Spare().pop_back();
  return stack;
}

}  // namespace

Fiber::Fiber(std::function<void()> body) : body_(std::move(body)) {}

Fiber::~Fiber() {
  if (begun_ && !ended_) std::abort();
  if (stack_ != nullptr) Spare().push_back(std::move(stack_));
}

void Fiber::Enter(unsigned high, unsigned low) {
  auto* const self =
      reinterpret_cast<Fiber*>((static_cast<uintptr_t>(high) << 32) | static_cast<uintptr_t>(low));
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &self->caller_stack_, &self->caller_stack_bytes_);
#endif
  self->body_();
  self->ended_ = true;
  self->SwitchOut(/*for_good=*/true);
}

void Fiber::Resume() {
  if (!begun_) {
    begun_ = true;
    stack_ = TakeStack();
    getcontext(&own_);
    own_.uc_stack.ss_sp = stack_.get();
    own_.uc_stack.ss_size = kStackBytes;
    own_.uc_link = nullptr;
    const auto self = reinterpret_cast<uintptr_t>(this);
    makecontext(&own_, reinterpret_cast<void (*)()>(&Fiber::Enter), 2,
                static_cast<unsigned>(self >> 32), static_cast<unsigned>(self));
  }
  SwitchIn();
}

void Fiber::Yield() { SwitchOut(/*for_good=*/false); }

void Fiber::SwitchIn() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&caller_fake_stack_, stack_.get(), kStackBytes);
#endif
  swapcontext(&caller_, &own_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(caller_fake_stack_, nullptr, nullptr);
#endif
}

void Fiber::SwitchOut(bool for_good) {
  (void)for_good;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(for_good ? nullptr : &own_fake_stack_, caller_stack_,
                                 caller_stack_bytes_);
#endif
  swapcontext(&own_, &caller_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(own_fake_stack_, &caller_stack_, &caller_stack_bytes_);
#endif
}

}  // namespace tfmpi
