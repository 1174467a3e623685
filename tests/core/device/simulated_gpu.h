// A GPU of threads, for tests without one. What a stream does is done by a thread of its own: late,
// and in any order beside other streams. Nothing orders streams and the host but what a real GPU
// orders them by: an enqueued piece of work comes after what its host thread did before, after the
// stream's earlier work, and after the events that the stream was told to wait for; the host comes
// after an event when Query has said that it ended. So a missing wait gives stale data, and
// ThreadSanitizer reports it.
//
// The host faults when it touches the GPU's memory. Copies from or to memory that a GPU cannot
// reach, uses after a deletion, and what is left in the end fail the test.

#ifndef TFMPI_TESTS_CORE_DEVICE_SIMULATED_GPU_H_
#define TFMPI_TESTS_CORE_DEVICE_SIMULATED_GPU_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tensorflow_patches/core/device/gpu.h"
#include "tests/core/device/simulated_memory.h"

namespace tfmpi {

class SimulatedGpu : public Gpu {
 public:
  enum class Schedule {
    kRandom,  // each piece of work begins after a random time
    kLate,    // no work begins before somebody asks for an event behind it: as late as can be
  };

  struct Options {
    Schedule schedule = Schedule::kRandom;
    uint64_t seed = 1;
    int longest_delay_us = 300;
    size_t memory_bytes = size_t{1} << 30;  // all that is ever allocated
    std::string description = "simulated GPU 0";
  };

  // What a function is called, for errors on demand.
  enum class Call {
    kMakeCurrent,
    kNewStream,
    kNewEvent,
    kRecord,
    kWait,
    kQuery,
    kCopy,
    kNewPinned,
    kRegister,
    kNewMemory,
    kOpenMemory,
    kNewSum,
  };

  struct Counts {
    int records = 0;
    int waits = 0;
    int queries = 0;
    int copies_to_gpu = 0;
    int copies_to_host = 0;
    int copies_inside = 0;  // of the GPU, or of the host
    size_t bytes_to_gpu = 0;
    size_t bytes_to_host = 0;
    int allocations = 0;  // of either kind of memory
    int host_waits = 0;   // Finish, and deletions of memory that was in use
  };

  explicit SimulatedGpu(Options options);
  SimulatedGpu() : SimulatedGpu(Options()) {}
  // Runs what is enqueued, but for streams that stand still. Fails the test if a stream, an event
  // or memory was not deleted, and for every complaint.
  ~SimulatedGpu() override;

  std::string description() const override { return options_.description; }
  Status MakeCurrent() override;
  Status NewStream(GpuStream* stream) override;
  Status NewEvent(GpuEvent* event) override;
  void Delete(GpuStream stream) override;
  void Delete(GpuEvent event) override;
  Status Record(GpuEvent event, GpuStream stream) override;
  Status Wait(GpuStream stream, GpuEvent event) override;
  Status Query(GpuEvent event, bool* ended) override;
  Status Copy(void* to, const void* from, size_t bytes, GpuStream stream) override;
  Status NewPinned(size_t bytes, void** memory) override;
  void DeletePinned(void* memory) override;
  Status Register(void* memory, size_t bytes) override;
  void Unregister(void* memory) override;
  Status NewMemory(size_t bytes, void** memory) override;
  void DeleteMemory(void* memory) override;
  // Ranks that share a GPU share this object: memory that is opened has one address.
  Status NewSharedMemory(size_t bytes, void** memory, GpuHandle* handle) override;
  Status OpenMemory(const GpuHandle& handle, void** memory) override;
  void CloseMemory(const GpuHandle& handle, void* memory) override;
  Status NewSum(size_t sources, std::unique_ptr<GpuSum>* sum) override;

  // A kernel: `body` is run by the stream, and finds its data by Inside. Memory of `uses` cannot be
  // deleted before it has ended.
  Status Launch(GpuStream stream, std::function<void()> body,
                const std::vector<const void*>& uses = {});
  // Where a kernel, and nobody else, finds `count` elements at an address of the GPU's or of pinned
  // memory. Ends the process for others.
  template <typename T>
  T* Inside(const void* address, size_t count) {
    return static_cast<T*>(InsideOf(address, count * sizeof(T)));
  }
  // Whether this GPU is the calling thread's current one.
  bool IsCurrent() const;
  // The host waits for all that was enqueued on `stream`.
  void Finish(GpuStream stream);

  // From now on `stream` begins nothing, until LetGo or for good.
  void Hold(GpuStream stream);
  void LetGo(GpuStream stream);
  // The stream that begins the n-th copy or kernel from now on stands still at it, until LetAllGo.
  void HoldWork(int n);
  void LetAllGo();
  // The n-th such call from now on fails; n = 1 is the next.
  void Fail(Call call, int n);
  // The n-th copy or kernel that begins from now on fails. As on a GPU, nothing works after that.
  void FailWork(int n);

  // So many blocks of its memory are left in the end, no more and no fewer: those of ranks that
  // failed, which others may still read.
  void ExpectLeft(int blocks);

  Counts counts() const;
  // What was found wrong with the use of this GPU until now; it no longer fails the test.
  std::vector<std::string> TakeComplaints();

 private:
  struct Stream;
  struct Event;
  struct Moment;
  struct Work;

  using Block = SimulatedMemory::Block;

  // With the lock. "" or why the call fails.
  Status Begin(Call call, const char* name, size_t bytes = 0);
  Stream* Known(GpuStream stream, const char* name);
  Event* Known(GpuEvent event, const char* name);
  Status Complain(const std::string& what);
  Status Allocate(Call call, const char* name, size_t bytes, bool pinned, void** memory);
  void Deallocate(void* memory, const char* name, bool pinned, bool registered = false);
  void Enqueue(Stream* stream, std::unique_ptr<Work> work);
  Moment* Mark(Stream* stream);
  void Demand(const Moment& moment);
  bool MayBegin(const Stream& stream) const;
  void Ended(Stream* stream, const Work& work);

  // The stream's thread.
  void Run(Stream* stream);
  bool Await(Stream* stream, Moment* moment);
  // False: the stream stands still, and the GPU's end has come.
  bool Execute(Stream* stream, Work* work);
  void* InsideOf(const void* address, size_t bytes);

  const Options options_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool closing_ = false;
  std::string failed_;  // why nothing works any more
  int work_until_failure_ = 0;
  int work_until_hold_ = 0;
  int expected_left_ = 0;
  std::map<Call, int> calls_until_failure_;
  Counts counts_;
  std::vector<std::string> complaints_;
  SimulatedMemory memory_;
  std::map<void*, int> opened_;  // how often
  // Kept to the end: a handle that was deleted is known as such, and nothing needs to be counted.
  std::vector<std::unique_ptr<Stream>> streams_;
  std::vector<std::unique_ptr<Event>> events_;
  std::vector<std::unique_ptr<Moment>> moments_;
};

}  // namespace tfmpi

#endif  // TFMPI_TESTS_CORE_DEVICE_SIMULATED_GPU_H_
