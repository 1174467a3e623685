// The requests that one execution of a kernel submits to the engine together.
//
// A kernel creates a group on an inter-op thread, adds requests, and submits it. The engine answers
// on the communication thread; when the last request has ended, `ended` runs on the runner. From
// Submit to that moment the group owns itself. The kernel owns the memory that requests refer to.

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

// A request for `tensor`, without data; an allreduce is an average.
Request RequestFor(OpKind kind, std::string name, DataType dtype, const tensorflow::Tensor& tensor);

// Runs `closure` on a thread for which no other code waits. Threads are reused.
void RunOnOwnThread(std::function<void()> closure);

// What ends a kernel: sets its status, if not ok, and calls `done`.
std::function<void(const absl::Status&)> EndOf(tensorflow::OpKernelContext* context,
                                               tensorflow::AsyncOpKernel::DoneCallback done);

class RequestGroup {
 public:
  using Runner = std::function<void(std::function<void()>)>;
  using Ended = std::function<void(const absl::Status&)>;

  // `cancellation` may be null; otherwise it outlives `ended`.
  RequestGroup(Engine* engine, tensorflow::CancellationManager* cancellation, Runner runner)
      : engine_(engine), cancellation_(cancellation), runner_(std::move(runner)) {}

  // For a kernel, whose step may be cancelled; on a GPU the requests use that GPU's memory.
  static std::unique_ptr<RequestGroup> OfKernel(Engine* engine,
                                                tensorflow::OpKernelContext* context);

  // The memory of requests added from now on. The group creates its event.
  void SetMemory(const GpuMemory& memory) { memory_ = memory; }
  // The request must have no `done`, which the group sets.
  void Add(Request request);
  // A request with host memory, even on a GPU.
  void AddOfHost(Request request) { requests_.push_back(std::move(request)); }

  // Submits all requests to the engine and takes `group`. `ended` runs exactly once, never on the
  // communication thread, with the first failure. If the step is cancelled, the requests are
  // withdrawn. `what` describes the operation in the error of a step that was cancelled before. On
  // a GPU, everything that the requests read must have been enqueued, and everything they write
  // allocated.
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
  KeptEvent ready_;          // if there is a GPU
  absl::Status gpu_status_;  // of finding the kernel's GPU; Submit reports it
  std::vector<Request> requests_;
  Ended ended_;
  std::atomic<int> unfinished_{0};

  std::mutex mutex_;
  Status status_;  // the first failure; guarded by mutex_, as all below
  std::vector<Ticket> tickets_;
  bool cancelled_ = false;
  bool watching_ = false;
  tensorflow::CancellationToken token_ = tensorflow::CancellationManager::kInvalidToken;
};

}  // namespace tfmpi

#endif  // TFMPI_GLUE_RUNTIME_REQUEST_GROUP_H_
