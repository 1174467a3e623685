// A rank that sees the outcome of a vote only when the others no longer wait for it.

#ifndef TFMPI_TESTS_CORE_SUPPORT_LOOKS_LATE_H_
#define TFMPI_TESTS_CORE_SUPPORT_LOOKS_LATE_H_

#include <memory>
#include <thread>
#include <utility>

#include "tests/core/support/decorated.h"
#include "tests/core/support/ranks.h"

namespace tfmpi {

// After its vote it looks only once the others have gone on to another position, or in 20 ms.
class LooksLate : public Decorated {
 public:
  using Decorated::Decorated;

  bool MayPoll() const override { return false; }
  std::atomic<int64_t>* SharedNumbers(int rank) override {
    votes_ = votes_ || rank == topology().rank;  // it is about to vote
    return next_->SharedNumbers(rank);
  }
  void Wait(Clock::duration limit, bool expecting, const std::function<bool()>& ready) override {
    const auto position = [this] { return SharedWord()->load() >> 24; };
    const uint64_t before = position();
    for (int i = 0; votes_ && i < 20 && position() == before; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    votes_ = false;
    next_->Wait(limit, expecting, ready);
  }
  Status SparseAllgather(const std::vector<int64_t>& rows, size_t row_bytes, RowAccess* access,
                         TimePoint deadline) override {
    return next_->SparseAllgather(rows, row_bytes, access, deadline);
  }

 private:
  bool votes_ = false;
};

// Rank 1 looks late.
inline std::unique_ptr<Transport> OneLooksLate(std::unique_ptr<Transport> transport, int rank) {
  if (rank != 1) return transport;
  return std::make_unique<LooksLate>(std::move(transport));
}

}  // namespace tfmpi

#endif  // TFMPI_TESTS_CORE_SUPPORT_LOOKS_LATE_H_
