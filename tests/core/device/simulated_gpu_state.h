// What a simulated GPU is made of: simulated_gpu.cc's and simulated_streams.cc's alone.

#ifndef TFMPI_TESTS_CORE_DEVICE_SIMULATED_GPU_STATE_H_
#define TFMPI_TESTS_CORE_DEVICE_SIMULATED_GPU_STATE_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "tests/core/device/simulated_gpu.h"

namespace tfmpi {

// The end of all that was enqueued on a stream at some time.
struct SimulatedGpu::Moment {
  Stream* stream = nullptr;
  uint64_t position = 0;  // of the work that ends with it
  bool ended = false;
};

struct SimulatedGpu::Work {
  std::function<void()> body;   // a copy or a kernel
  Moment* waits_for = nullptr;  // or a wait
  Moment* ends = nullptr;       // or a mark
  std::vector<SimulatedMemory::Block*> uses;
};

struct SimulatedGpu::Stream {
  int number = 0;
  std::deque<std::unique_ptr<Work>> queue;
  uint64_t enqueued = 0;
  uint64_t begun = 0;
  uint64_t demanded = 0;  // so many may begin, under Schedule::kLate
  bool held = false;
  bool gave_up = false;  // in the end: it waits for a stream that stands still
  bool deleted = false;
  std::mt19937_64 random;
  std::thread thread;

  bool Uses(const SimulatedMemory::Block* block) const {
    return std::any_of(queue.begin(), queue.end(), [block](const auto& work) {
      return std::find(work->uses.begin(), work->uses.end(), block) != work->uses.end();
    });
  }
};

struct SimulatedGpu::Event {
  Moment* moment = nullptr;  // null: never recorded, which counts as ended
  bool deleted = false;
};

}  // namespace tfmpi

#endif  // TFMPI_TESTS_CORE_DEVICE_SIMULATED_GPU_STATE_H_
