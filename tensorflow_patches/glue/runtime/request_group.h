// The requests that one execution of a kernel, or of a compiled step's call, submits together.
//
// The kernel or call creates a group, adds requests and submits it, on any thread. The engine ends
// requests on the communication thread; after the last one, `ended` runs on the runner. From Submit
// to that moment the group owns itself. Its creator keeps the memory that requests refer to.

#ifndef TFMPI_GLUE_RUNTIME_REQUEST_GROUP_H_
#define TFMPI_GLUE_RUNTIME_REQUEST_GROUP_H_

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow_patches/glue/runtime/gpu_step.h"
#include "tensorflow_patches/glue/runtime/runtime.h"

namespace tfmpi {

// The number of gradients that all kernels of the process have submitted so far.
int64_t GradientsSubmitted();
void CountGradients(int64_t gradients);

// A request for `tensor`, without buffers; an allreduce is an average.
Request RequestFor(OpKind kind, std::string name, DataType dtype, const tensorflow::Tensor& tensor);

// Runs `closure` on a thread of a pool that grows as needed, so `closure` may block.
void RunOnOwnThread(std::function<void()> closure);

// Returns a function that ends a kernel: it sets the kernel's status, if not ok, and calls `done`.
std::function<void(const absl::Status&)> EndOf(tensorflow::OpKernelContext* context,
                                               tensorflow::AsyncOpKernel::DoneCallback done);

class RequestGroup {
 public:
  using Runner = std::function<void(std::function<void()>)>;
  using Ended = std::function<void(const absl::Status&)>;

  // `cancellation` may be null; otherwise it outlives `ended`.
  RequestGroup(Engine* engine, tensorflow::CancellationManager* cancellation, Runner runner)
      : engine_(engine), cancellation_(cancellation), runner_(std::move(runner)) {}

  // For a kernel, whose step may be cancelled. If it runs on a GPU, the requests that Add takes are
  // in that GPU's memory.
  static std::unique_ptr<RequestGroup> OfKernel(Engine* engine,
                                                tensorflow::OpKernelContext* context);

  // Sets the GPU and stream of the requests that Add takes from now on; Submit adds the event.
  void SetMemory(const GpuMemory& memory) { memory_ = memory; }
  // The request must have no `done`, which the group sets.
  void Add(Request request);
  // A request with host memory, even on a GPU.
  void AddHostRequest(Request request) { requests_.push_back(std::move(request)); }

  // Takes ownership of `group` and submits all its requests to the engine. `ended` runs exactly
  // once, never on the communication thread, with ok or the first failure. If the step is
  // cancelled, the requests are withdrawn; if that happened before this call, the error is "the
  // step was cancelled before `what`". On a GPU, the work that computes the requests' inputs must
  // have been enqueued, and their outputs allocated.
  static void Submit(std::unique_ptr<RequestGroup> group, const std::string& what, Ended ended);

 private:
  bool WatchForCancellation();
  absl::Status RecordReady();
  void Drop(const Status& status);
  void Withdraw();
  void EndOne(const Status& status);
  void Finish();

  Engine* const engine_;
  tensorflow::CancellationManager* const cancellation_;
  const Runner runner_;
  GpuMemory memory_;
  PooledEvent ready_;        // if there is a GPU
  absl::Status gpu_status_;  // of finding the kernel's GPU; Submit reports it
  std::vector<Request> requests_;
  Ended ended_;
  std::atomic<int> unfinished_{0};

  std::mutex mutex_;
  Status status_;  // the first failure; guarded by mutex_, like tickets_ and cancelled_
  std::vector<Ticket> tickets_;
  bool cancelled_ = false;
  bool watching_ = false;
  tensorflow::CancellationToken token_ = tensorflow::CancellationManager::kInvalidToken;
};

}  // namespace tfmpi

#endif  // TFMPI_GLUE_RUNTIME_REQUEST_GROUP_H_
