// A GPU simulated by threads, for tests without one. Each stream has a thread, which does the work
// late, and in any order relative to other streams. Streams and the host are ordered only as by a
// real GPU: work comes after all that its host thread did before it enqueued the work, after the
// stream's earlier work, and after the events for which the stream was told to wait; the host comes
// after an event once Query has returned that it has ended. So a missing wait gives stale data, and
// ThreadSanitizer reports it.
//
// The host faults when it touches the GPU's memory. The test fails if memory is copied that a GPU
// cannot reach, if an object is used after its deletion, or if one is never deleted.

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
    kLate,    // work begins as late as possible: when a later event is queried or waited for
  };

  struct Options {
    Schedule schedule = Schedule::kRandom;
    uint64_t seed = 1;
    int longest_delay_us = 300;
    size_t memory_bytes = size_t{1} << 30;  // for all allocations together, deleted ones too
    std::string description = "simulated GPU 0";
  };

  // The calls that Fail can make fail.
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
    int copies_inside = 0;  // within the GPU, or within the host
    size_t bytes_to_gpu = 0;
    size_t bytes_to_host = 0;
    int allocations = 0;  // of either kind of memory
    int host_waits = 0;   // Finish, and deletions of memory that was in use
  };

  explicit SimulatedGpu(Options options);
  SimulatedGpu() : SimulatedGpu(Options()) {}
  // Runs the enqueued work, except on held streams. Fails the test if a stream, an event or memory
  // was not deleted, or if there are complaints.
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
  // Ranks that share a GPU share this object, so opened memory has the same address on all.
  Status NewSharedMemory(size_t bytes, void** memory, GpuHandle* handle) override;
  Status OpenMemory(const GpuHandle& handle, void** memory) override;
  void CloseMemory(const GpuHandle& handle, void* memory) override;
  Status NewSum(size_t sources, std::unique_ptr<GpuSum>* sum) override;

  // Enqueues a kernel: the stream runs `body`, which finds its data by Inside. Deleting memory in
  // `uses` waits until the kernel has ended.
  Status Launch(GpuStream stream, std::function<void()> body,
                const std::vector<const void*>& uses = {});
  // For kernels only: where to access `count` elements of the GPU's memory or of pinned memory.
  // Ends the process if another thread calls it, or for any other address.
  template <typename T>
  T* Inside(const void* address, size_t count) {
    return static_cast<T*>(InsideOf(address, count * sizeof(T)));
  }
  // Whether this GPU is the calling thread's current one.
  bool IsCurrent() const;
  // The host waits for all that was enqueued on `stream`.
  void Finish(GpuStream stream);

  // From now on `stream` begins no work, until LetGo.
  void Hold(GpuStream stream);
  void LetGo(GpuStream stream);
  // The stream that begins the n-th copy or kernel from now on is held before it, until LetAllGo.
  void HoldWork(int n);
  void LetAllGo();
  // The n-th such call from now on fails; n = 1 is the next.
  void Fail(Call call, int n);
  // The n-th copy or kernel that begins from now on fails. As on a GPU, nothing works after that.
  void FailWork(int n);

  // Exactly this many blocks of its memory must be left at the end: those of failed ranks, which
  // other ranks may still read.
  void ExpectLeft(int blocks);

  Counts counts() const;
  // Returns and clears the complaints about the use of this GPU, so that they do not fail the test.
  std::vector<std::string> TakeComplaints();

 private:
  struct Stream;
  struct Event;
  struct Moment;
  struct Work;

  using Block = SimulatedMemory::Block;

  // These require the lock, except Allocate and Deallocate, which take it. Begin: an error if the
  // test or an earlier failure makes `call` fail.
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

  // On the stream's thread.
  void Run(Stream* stream);
  bool Await(Stream* stream, Moment* moment);
  // False if the stream is held and the GPU is being destroyed.
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
  // Kept to the end, so that deleted handles are recognized and no uses need to be counted.
  std::vector<std::unique_ptr<Stream>> streams_;
  std::vector<std::unique_ptr<Event>> events_;
  std::vector<std::unique_ptr<Moment>> moments_;
};

}  // namespace tfmpi

#endif  // TFMPI_TESTS_CORE_DEVICE_SIMULATED_GPU_H_
