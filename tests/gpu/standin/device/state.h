// The process's simulated GPUs: devices with their memory, contexts, and counts.
//
// Nothing is ever destroyed, because TensorFlow's threads use it until the process ends.

#ifndef TFMPI_TESTS_GPU_STANDIN_DEVICE_STATE_H_
#define TFMPI_TESTS_GPU_STANDIN_DEVICE_STATE_H_

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "device/types.h"

namespace standin {

// FAKE_CUDA_...; see README.md.
struct Settings {
  int devices;
  size_t bytes;     //  memory of each device
  int delay_us;     //  maximum delay before an operation runs; 0: none
  int verbose;      //  1: print unsupported calls, once; 2: each operation
  bool statistics;  //  printed at the end of the process
};
const Settings& settings();

// A device's memory: addresses that fault on access, and a second mapping of the pages for copies.
class Memory {
 public:
  explicit Memory(size_t capacity);
  Result Allocate(size_t bytes, Pointer* pointer);  // zeroed
  Result Free(Pointer pointer);
  bool Contains(Pointer pointer) const { return pointer >= base_ && pointer < base_ + capacity_; }
  // The allocation that contains `pointer`.
  bool Find(Pointer pointer, Pointer* start, size_t* bytes) const;
  bool Holds(const void* bytes, size_t length) const;  //  anywhere in allocated memory
  void* Shadow(Pointer pointer) const { return shadow_ + (pointer - base_); }
  size_t capacity() const { return capacity_; }
  size_t free() const;

 private:
  const size_t capacity_;
  int file_ = -1;
  Pointer base_ = 0;
  char* shadow_ = nullptr;
  mutable std::mutex mutex_;
  size_t used_ = 0;
  std::map<size_t, size_t> allocations_;  // offset, bytes
};

struct Device;
// Each device has one, the primary context.
struct Context {
  Device* device;
};

struct Device {
  Device(int number, size_t bytes) : ordinal(number), memory(bytes), context{this} {}
  const int ordinal;
  Memory memory;
  Context context;
  int retained = 0;
};

// The devices that CUDA_VISIBLE_DEVICES leaves.
const std::vector<std::unique_ptr<Device>>& devices();
Device* DeviceAt(int ordinal);  //  null if it does not exist
int PciBus(const Device& device);
void Uuid(const Device& device, unsigned char* bytes16);
int Attribute(const Device& device, int attribute);

// The calling thread's context; initially null, as in the driver.
std::vector<Context*>& context_stack();
Context* CurrentContext();

// Host memory that a GPU can access directly.
class Pinned {
 public:
  Result Allocate(size_t bytes, bool managed, void** memory);
  Result Free(void* memory);
  Result Register(void* memory, size_t bytes);
  Result Unregister(void* memory);
  struct Range {
    size_t bytes;
    bool ours, managed;
  };
  bool Find(const void* pointer, void** start, Range* range) const;

 private:
  mutable std::mutex mutex_;
  std::map<uintptr_t, Range> ranges_;
};
Pinned& pinned();

// The host's address for `pointer`: a device's second mapping, or host memory itself.
Device* DeviceOf(Pointer pointer);
void* Reach(Pointer pointer);
inline void* Reach(const void* pointer) { return Reach(reinterpret_cast<Pointer>(pointer)); }

enum Count {
  kKernels,
  kToDevice,
  kToHost,
  kOnDevice,
  kFills,
  kHostCalls,
  kWaits,
  kGraphs,
  kCounts
};
void Add(Count count);

// Prints a line on stderr, like printf, for FAKE_CUDA_VERBOSE=2.
__attribute__((format(printf, 1, 2))) void Trace(const char* format, ...);

// Reports once that `name` was requested but does not exist.
Result Unsupported(const char* name);
Result CublasKernel(void* handle);

}  // namespace standin

#endif  // TFMPI_TESTS_GPU_STANDIN_DEVICE_STATE_H_
