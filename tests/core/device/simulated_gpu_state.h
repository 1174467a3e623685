// The parts of a simulated GPU, for simulated_gpu.cc and simulated_streams.cc only.

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

// A point in a stream: the end of all work that was enqueued before it.
struct SimulatedGpu::Moment {
  Stream* stream = nullptr;
  uint64_t position = 0;  // of the Work that marks it
  bool ended = false;
};

// One of the first three is set.
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
  uint64_t demanded = 0;  // how many may begin, with Schedule::kLate
  bool held = false;
  bool gave_up = false;  // at the GPU's end: it waits for a held stream
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
