// The queues of a simulated GPU, and the threads that run them.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <utility>

#include "tests/core/device/simulated_gpu.h"
#include "tests/core/device/simulated_gpu_state.h"
#include "tests/core/device/unseen.h"

namespace tfmpi {
namespace {

thread_local const SimulatedGpu* running_for = nullptr;

}  // namespace

void SimulatedGpu::Enqueue(Stream* stream, std::unique_ptr<Work> work) {
  for (Block* block : work->uses) ++block->uses;
  HappensBefore(work.get());
  stream->queue.push_back(std::move(work));
  ++stream->enqueued;
  changed_.notify_all();
}

SimulatedGpu::Moment* SimulatedGpu::Mark(Stream* stream) {
  moments_.push_back(std::make_unique<Moment>());
  Moment* const moment = moments_.back().get();
  moment->stream = stream;
  moment->position = stream->enqueued;
  auto work = std::make_unique<Work>();
  work->ends = moment;
  Enqueue(stream, std::move(work));
  return moment;
}

void SimulatedGpu::Demand(const Moment& moment) {
  moment.stream->demanded = std::max(moment.stream->demanded, moment.position + 1);
  changed_.notify_all();
}

bool SimulatedGpu::MayBegin(const Stream& stream) const {
  if (stream.held || stream.queue.empty()) return false;
  return closing_ || options_.schedule == Schedule::kRandom || stream.begun < stream.demanded;
}

void SimulatedGpu::Ended(Stream* stream, const Work& work) {
  for (Block* block : work.uses) --block->uses;
  if (work.ends != nullptr) work.ends->ended = true;
  stream->queue.pop_front();
  changed_.notify_all();
}

// ---- The stream's thread ----

void SimulatedGpu::Run(Stream* stream) {
  running_for = this;
  while (true) {
    Work* work = nullptr;
    unsigned delay_us = 0;
    {
      UnseenLock lock(mutex_);
      lock.Wait(changed_, [&] { return MayBegin(*stream) || closing_; });
      if (!MayBegin(*stream)) return;
      work = stream->queue.front().get();
      ++stream->begun;
      const uint64_t drawn = stream->random();
      const auto longest = static_cast<unsigned>(options_.longest_delay_us);
      // Half of all work begins at once.
      if (!closing_ && drawn % 2 == 0 && longest != 0) delay_us = drawn / 2 % longest;
    }
    if (delay_us != 0) std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
    HappensAfter(work);
    if (work->waits_for != nullptr && !Await(stream, work->waits_for)) return;
    if (work->body && !Execute(stream, work)) return;
    if (work->ends != nullptr) HappensBefore(work->ends);
    // Orders this work before Unregister, after which the owner uses the memory again.
    for (Block* const block : work->uses) {
      if (block->registered) HappensBefore(block);
    }
    UnseenLock lock(mutex_);
    Ended(stream, *work);
  }
}

// False if it never ends and the GPU is being destroyed.
bool SimulatedGpu::Await(Stream* stream, Moment* moment) {
  {
    UnseenLock lock(mutex_);
    Demand(*moment);
    lock.Wait(changed_, [&] {
      return moment->ended || (closing_ && (moment->stream->held || moment->stream->gave_up));
    });
    stream->gave_up = !moment->ended;
    if (stream->gave_up) {
      changed_.notify_all();
      return false;
    }
  }
  HappensAfter(moment);
  return true;
}

bool SimulatedGpu::Execute(Stream* stream, Work* work) {
  {
    UnseenLock lock(mutex_);
    if (work_until_hold_ > 0 && --work_until_hold_ == 0) stream->held = true;
    lock.Wait(changed_, [&] { return !stream->held || closing_; });
    if (stream->held) return false;
    if (failed_.empty() && work_until_failure_ > 0 && --work_until_failure_ == 0) {
      failed_ = "CUDA_ERROR_LAUNCH_FAILED (as the test wants it)";
    }
    if (!failed_.empty()) return true;
  }
  work->body();
  return true;
}

void* SimulatedGpu::InsideOf(const void* address, size_t bytes) {
  std::string why;
  UnseenLock lock(mutex_);
  if (running_for == this && memory_.Find(address, bytes, &why) != nullptr) {
    return memory_.Inside(address);
  }
  if (running_for != this) why = "for kernels of this GPU only";
  std::fprintf(stderr, "simulated GPU: %zu bytes at %p: %s\n", bytes, address, why.c_str());
  std::abort();
}

}  // namespace tfmpi
