// The requests that one execution of a kernel hands to the engine together.
//
// A kernel makes a group on an inter-op thread, adds requests, and submits it. The engine answers
// on the communication thread; when the last request has ended, `ended` runs on the runner. The
// group owns itself from Submit to that moment. The memory that requests name is the kernel's.

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

// Gradients handed to the engine by all kernels of the process, so far.
int64_t GradientsSubmitted();
void CountGradients(int64_t gradients);

// A request for `tensor`, without data: an allreduce is an average.
Request RequestFor(OpKind kind, std::string name, DataType dtype, const tensorflow::Tensor& tensor);

// Runs `closure` on a thread that nobody else waits for. Threads are kept for the next one.
void RunOnOwnThread(std::function<void()> closure);

class RequestGroup {
 public:
  using Runner = std::function<void(std::function<void()>)>;
  using Ended = std::function<void(const absl::Status&)>;

  // `cancellation` may be null, else it outlives `ended`.
  RequestGroup(Engine* engine, tensorflow::CancellationManager* cancellation, Runner runner)
      : engine_(engine), cancellation_(cancellation), runner_(std::move(runner)) {}

  // Of a kernel, whose step may be cancelled; on a GPU the requests' memory is that GPU's.
  static std::unique_ptr<RequestGroup> OfKernel(Engine* engine,
                                                tensorflow::OpKernelContext* context);

  // The memory of requests that are added from now on. The group makes its event.
  void SetMemory(const GpuMemory& memory) { memory_ = memory; }
  // Without `done`, which is the group's.
  void Add(Request request);
  // One of the host's memory, on a GPU, too.
  void AddOfHost(Request request) { requests_.push_back(std::move(request)); }

  // Hands all requests to the engine and gives up `group`. `ended` runs exactly once, never on the
  // communication thread, with the first failure; if the step is cancelled, the requests are
  // withdrawn. `what` names the whole for the error of a step that was cancelled before. On a GPU
  // all that the requests read has been enqueued, and all that they write allocated.
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
  KeptEvent ready_;  // if there is a GPU
  absl::Status no_gpu_;
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
