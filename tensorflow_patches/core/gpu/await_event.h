// How the communication thread waits for a GPU. No other thread may wait for one.

#ifndef TFMPI_CORE_GPU_AWAIT_EVENT_H_
#define TFMPI_CORE_GPU_AWAIT_EVENT_H_

#include <string>

#include "tensorflow_patches/core/base/clock.h"
#include "tensorflow_patches/core/base/status.h"
#include "tensorflow_patches/core/device/gpu.h"

namespace tfmpi {

// Pauses after `polls` polls of a GPU without news: briefly at first; later it checks the deadline,
// and sleeps. Returns false if it sees that the deadline has passed.
inline bool PauseBetweenPolls(int polls, TimePoint deadline) {
  constexpr int kSpins = 200;
  if (polls < kSpins) {
    Clock::Relax();
    return true;
  }
  if (Clock::now() > deadline) return false;
  Clock::Sleep(std::chrono::microseconds(10));
  return true;
}

// Waits until `event` has occurred. Meanwhile it calls `watch`. Fails if the GPU or `watch` fails.
// At the deadline returns kDeadlineExceeded with the message that `late` returns.
template <typename Late, typename Watch>
Status AwaitEvent(Gpu* gpu, GpuEvent event, TimePoint deadline, const Late& late,
                  const Watch& watch) {
  for (int polls = 0;; ++polls) {
    bool ended = false;
    Status status = gpu->Query(event, &ended);
    if (!status.ok() || ended) return status;
    status = watch();
    if (!status.ok()) return status;
    if (!PauseBetweenPolls(polls, deadline)) return Status(Code::kDeadlineExceeded, late());
  }
}

template <typename Late>
Status AwaitEvent(Gpu* gpu, GpuEvent event, TimePoint deadline, const Late& late) {
  return AwaitEvent(gpu, event, deadline, late, [] { return Status(); });
}

// Turns a failure of this GPU into kUnavailable, which ends the job, as kDeadlineExceeded does: the
// peers wait for this rank.
inline Status Fatal(const Status& status) {
  if (status.ok() || status.code() == Code::kDeadlineExceeded) return status;
  return Status(Code::kUnavailable, status.message());
}

// Messages for `late`.
inline std::string NotArrived(const std::string& what, const Gpu& gpu) {
  return what + " has not arrived from " + gpu.description() +
         ", which is busy with earlier work, or hangs (limit: TF_MPI_STALL_TIMEOUT, at most 300 s)";
}
inline std::string StillBusy(const Gpu& gpu) {
  return gpu.description() +
         " is busy with earlier work, or hangs (limit: TF_MPI_STALL_TIMEOUT, at most 300 s)";
}

}  // namespace tfmpi

#endif  // TFMPI_CORE_GPU_AWAIT_EVENT_H_
