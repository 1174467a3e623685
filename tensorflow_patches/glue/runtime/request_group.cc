#include "tensorflow_patches/glue/runtime/request_group.h"

#include <utility>

#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/platform/unbounded_work_queue.h"

namespace tfmpi {
namespace {

std::atomic<int64_t> g_gradients_submitted{0};

}  // namespace

int64_t GradientsSubmitted() { return g_gradients_submitted; }

void RunOnOwnThread(std::function<void()> closure) {
  static auto* const queue =
      new tensorflow::UnboundedWorkQueue(tensorflow::Env::Default(), "tf_mpi_closures");
  queue->Schedule(std::move(closure));
}

void CountGradients(int64_t gradients) {
  g_gradients_submitted.fetch_add(gradients, std::memory_order_relaxed);
}

RequestGroup::Ended EndOf(tensorflow::OpKernelContext* context,
                          tensorflow::AsyncOpKernel::DoneCallback done) {
  return [context, done = std::move(done)](const absl::Status& status) {
    if (!status.ok()) context->SetStatus(status);
    done();
  };
}

Request RequestFor(OpKind kind, std::string name, DataType dtype,
                   const tensorflow::Tensor& tensor) {
  Request request;
  request.name = std::move(name);
  request.signature = {kind, ReduceOp::kAverage, dtype, 0, ToShape(tensor.shape())};
  return request;
}

std::unique_ptr<RequestGroup> RequestGroup::OfKernel(Engine* engine,
                                                     tensorflow::OpKernelContext* context) {
  auto group =
      std::make_unique<RequestGroup>(engine, context->cancellation_manager(), *context->runner());
  if (RunsOnGpu(context)) group->gpu_status_ = GpuOfKernel(context, &group->memory_);
  return group;
}

void RequestGroup::Add(Request request) {
  if (memory_.gpu != nullptr) {
    const void* const weight = request.memory.weight_on_gpu;
    request.memory = memory_;
    request.memory.weight_on_gpu = weight;
    request.signature.on_gpu = true;
  }
  requests_.push_back(std::move(request));
}

absl::Status RequestGroup::RecordReady() {
  if (!gpu_status_.ok() || memory_.gpu == nullptr) return gpu_status_;
  TF_RETURN_IF_ERROR(ready_.Take(memory_.gpu));
  for (Request& request : requests_) request.memory.ready = ready_.get();
  return ToAbsl(memory_.gpu->Record(ready_.get(), memory_.stream));
}

// Drops all requests, so that Submit ends the group with `status`.
void RequestGroup::Drop(const Status& status) {
  std::lock_guard<std::mutex> lock(mutex_);
  status_ = status;
  unfinished_ = 1;
  requests_.clear();
}

void RequestGroup::Submit(std::unique_ptr<RequestGroup> group, const std::string& what,
                          Ended ended) {
  RequestGroup* const self = group.release();  // Finish deletes it
  self->ended_ = std::move(ended);
  // Counts this function, too, so that the group outlives it.
  self->unfinished_ = static_cast<int>(self->requests_.size()) + 1;
  if (!self->WatchForCancellation()) {
    self->Drop(Status(Code::kCancelled, "the step was cancelled before " + what));
  } else if (const absl::Status ready = self->RecordReady(); !ready.ok()) {
    self->Drop(Status(Code::kInternal, std::string(ready.message())));
  }
  for (Request& request : self->requests_) {
    request.done = [self](const Status& status) { self->EndOne(status); };
  }
  std::vector<Ticket> tickets;
  const bool may_withdraw = self->cancellation_ != nullptr;
  if (!self->requests_.empty()) {
    self->engine_->Submit(std::move(self->requests_), may_withdraw ? &tickets : nullptr);
  }
  bool withdraw = false;
  {
    std::lock_guard<std::mutex> lock(self->mutex_);
    self->tickets_ = tickets;
    withdraw = self->cancelled_;
  }
  if (withdraw) self->Withdraw();
  self->EndOne(Status());
}

// Returns false if the step is already cancelled.
bool RequestGroup::WatchForCancellation() {
  if (cancellation_ == nullptr) return true;
  token_ = cancellation_->get_cancellation_token();
  watching_ = cancellation_->RegisterCallback(token_, [this] { Withdraw(); });
  return watching_;
}

void RequestGroup::Withdraw() {
  std::vector<Ticket> tickets;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    cancelled_ = true;
    tickets = tickets_;
  }
  for (Ticket ticket : tickets) engine_->Withdraw(ticket);
}

// Called on the communication thread, or inside Submit.
void RequestGroup::EndOne(const Status& status) {
  if (!status.ok()) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (status_.ok()) status_ = status;
  }
  if (unfinished_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  runner_([this] {
    // Some runners of eager kernels run a closure at once, on the calling thread, but a kernel must
    // not run on the communication thread.
    if (engine_->OnCommunicationThread()) {
      RunOnOwnThread([this] { Finish(); });
    } else {
      Finish();
    }
  });
}

void RequestGroup::Finish() {
  // Waits for a running cancellation callback, so that it cannot access a deleted group.
  if (watching_) cancellation_->DeregisterCallback(token_);
  const absl::Status status = ToAbsl(status_);
  const Ended ended = std::move(ended_);
  delete this;
  ended(status);
}

}  // namespace tfmpi
