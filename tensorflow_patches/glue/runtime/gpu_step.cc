#include "tensorflow_patches/glue/runtime/gpu_step.h"

#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/device.h"
#include "tensorflow/core/framework/device_base.h"
#include "tensorflow_patches/glue/runtime/runtime.h"
#include "xla/stream_executor/stream.h"

namespace tfmpi {
namespace {

struct EventPool {
  std::mutex mutex;
  std::unordered_map<Gpu*, std::vector<GpuEvent>> kept;  // guarded by mutex
};

EventPool& GetEventPool() {
  static auto* const pool = new EventPool;
  return *pool;
}

// Null on a CPU.
stream_executor::Stream* StreamOf(tensorflow::OpKernelContext* context) {
  tensorflow::DeviceContext* const device = context->op_device_context();
  return device != nullptr ? device->stream() : nullptr;
}

// Copies tensors one after another. Deletes itself before `copied` runs.
class Copies {
 public:
  static void Start(tensorflow::OpKernelContext* context, TensorList tensors, bool to_host,
                    Copied copied) {
    if (!RunsOnGpu(context)) return copied(absl::OkStatus(), tensors);
    (new Copies(context, std::move(tensors), to_host, std::move(copied)))->Next();
  }

 private:
  Copies(tensorflow::OpKernelContext* context, TensorList tensors, bool to_host, Copied copied)
      : context_(context),
        from_(std::move(tensors)),
        to_host_(to_host),
        copied_(std::move(copied)) {
    to_.reserve(from_.size());  // must not move: a copy in progress has an element's address
  }

  void Next() {
    while (to_.size() < from_.size()) {
      const tensorflow::Tensor& from = from_[to_.size()];
      to_.emplace_back();
      const absl::Status status =
          context_->allocate_temp(from.dtype(), from.shape(), &to_.back(),
                                  to_host_ ? OnHost() : tensorflow::AllocatorAttributes());
      if (!status.ok()) return End(status);
      if (from.NumElements() != 0) return Copy(from, &to_.back());
    }
    End(absl::OkStatus());
  }

  void Copy(const tensorflow::Tensor& from, tensorflow::Tensor* to) {
    auto* const device = static_cast<tensorflow::Device*>(context_->device());
    const auto ended = [this](const absl::Status& status) {
      // TensorFlow's event thread must not run kernels.
      (*context_->runner())([this, status] { status.ok() ? Next() : End(status); });
    };
    if (to_host_) {
      context_->op_device_context()->CopyDeviceTensorToCPU(&from, "tensorflow.mpi", device, to,
                                                           ended);
    } else {
      context_->op_device_context()->CopyCPUTensorToDevice(&from, device, to, ended);
    }
  }

  void End(const absl::Status& status) {
    const Copied copied = std::move(copied_);
    const TensorList copies = std::move(to_);
    delete this;
    copied(status, copies);
  }

  tensorflow::OpKernelContext* const context_;
  const TensorList from_;
  const bool to_host_;
  Copied copied_;
  TensorList to_;
};

}  // namespace

bool RunsOnGpu(tensorflow::OpKernelContext* context) { return StreamOf(context) != nullptr; }

absl::Status GpuOfKernel(tensorflow::OpKernelContext* context, GpuMemory* memory) {
  return GpuOfStream(StreamOf(context)->platform_specific_handle().stream, memory);
}

absl::Status GpuOfStream(void* stream, GpuMemory* memory) {
  Status status;
  memory->stream = static_cast<GpuStream>(stream);
  memory->gpu = GpuOf(memory->stream, &status);
  return ToAbsl(status);
}

absl::Status PooledEvent::Take(Gpu* gpu) {
  gpu_ = gpu;
  {
    EventPool& pool = GetEventPool();
    std::lock_guard<std::mutex> lock(pool.mutex);
    std::vector<GpuEvent>& kept = pool.kept[gpu];
    if (!kept.empty()) {
      event_ = kept.back();
      kept.pop_back();
      return absl::OkStatus();
    }
  }
  return ToAbsl(gpu->NewEvent(&event_));
}

tensorflow::AllocatorAttributes OnHost() {
  tensorflow::AllocatorAttributes attributes;
  attributes.set_on_host(true);
  attributes.set_gpu_compatible(true);
  return attributes;
}

void ToHost(tensorflow::OpKernelContext* context, TensorList tensors, Copied copied) {
  Copies::Start(context, std::move(tensors), /*to_host=*/true, std::move(copied));
}

void ToKernel(tensorflow::OpKernelContext* context, TensorList tensors, Copied copied) {
  Copies::Start(context, std::move(tensors), /*to_host=*/false, std::move(copied));
}

PooledEvent::~PooledEvent() {
  if (event_ == nullptr) return;
  EventPool& pool = GetEventPool();
  std::lock_guard<std::mutex> lock(pool.mutex);
  pool.kept[gpu_].push_back(event_);
}

}  // namespace tfmpi
