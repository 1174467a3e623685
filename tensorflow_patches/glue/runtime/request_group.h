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
#include "tensorflow/core/framework/tensor.h"
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

  // Without `done`, which is the group's.
  void Add(Request request) { requests_.push_back(std::move(request)); }

  // Hands all requests to the engine and gives up `group`. `ended` runs exactly once, never on the
  // communication thread, with the first failure; if the step is cancelled, the requests are
  // withdrawn. `what` names the whole for the error of a step that was cancelled before.
  static void Submit(std::unique_ptr<RequestGroup> group, const std::string& what, Ended ended);

 private:
  bool WatchForCancellation();
  void Withdraw();
  void EndOne(const Status& status);
  void Finish();

  Engine* const engine_;
  tensorflow::CancellationManager* const cancellation_;
  const Runner runner_;
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
