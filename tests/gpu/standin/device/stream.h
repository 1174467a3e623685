// Streams, events and graphs. A stream is a thread that runs its operations in order.
//
// Handles may be used on any thread. A destroyed stream still runs what was enqueued before.

#ifndef TFMPI_TESTS_GPU_STANDIN_DEVICE_STREAM_H_
#define TFMPI_TESTS_GPU_STANDIN_DEVICE_STREAM_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "device/state.h"

namespace standin {

using Operation = std::function<void()>;

// Operations in the order in which they were added, which respects their dependencies.
struct Node {
  Operation run;  //  null: does nothing
  struct Graph* body = nullptr;
};
struct Graph {
  std::vector<std::shared_ptr<Node>> nodes;
  std::vector<std::unique_ptr<Graph>> bodies;  //  for child graphs
  void Run() const;
};

// A point in a stream's order.
class Mark {
 public:
  explicit Mark(Graph* graph = nullptr) : graph_(graph) {}
  void Reach();
  bool reached() const;
  void Wait();
  double seconds() const;                  //  time when it was reached
  Graph* graph() const { return graph_; }  //  into which it was captured, if any

 private:
  Graph* const graph_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool reached_ = false;
  double seconds_ = 0;
};

struct Event {
  explicit Event(unsigned f) : flags(f) {}
  const unsigned flags;
  std::shared_ptr<Mark> Last();
  void Set(std::shared_ptr<Mark> mark);

 private:
  std::mutex mutex_;
  std::shared_ptr<Mark> last_;  // null: never recorded
};

class Stream {
 public:
  // Unless `flags` has kNonBlocking, its operations and those of the device's default stream wait
  // for each other.
  Stream(Device* device, unsigned flags, int priority);
  void Push(Operation operation);
  void Record(Event* event);
  void Wait(Event* event);
  bool idle();
  void Synchronize();
  void Destroy();

  void BeginCapture(Graph* graph);
  Graph* EndCapture();  //  null if there was no capture
  Graph* capturing();

  Device* const device;
  const unsigned flags;
  const int priority;
  const uint64_t id;

 private:
  bool blocking() const;
  std::shared_ptr<Mark> Tail();
  void Enqueue(Operation operation);
  void Work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Operation> operations_;
  bool running_ = false, started_ = false, ending_ = false;
  Graph* capturing_ = nullptr;
};

// The stream of a handle; the small handles mean the default stream of the thread's device. Null
// for an invalid handle, or if the thread has no context.
Stream* StreamOf(void* handle);
bool IsStream(void* handle);
Event* EventOf(void* handle);  //  null for an invalid handle
void* NewEvent(unsigned flags);
void DeleteEvent(void* handle);
void Synchronize(Device* device);

// Writes a pattern of `width` bytes (1, 2 or 4) to `count` elements of device memory.
void FillElements(Pointer to, uint32_t value, unsigned width, size_t count);

}  // namespace standin

#endif  // TFMPI_TESTS_GPU_STANDIN_DEVICE_STREAM_H_
