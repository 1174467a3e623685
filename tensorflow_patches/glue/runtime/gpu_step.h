// The GPU on which a kernel runs, in the form that requests use.
//
// A kernel enqueues its work on a stream and returns; accesses to its memory are ordered only by
// that stream. So a request waits for an event of the stream, and the stream waits for the
// request's result (core/gpu/staged/staged_reduction.h).

#ifndef TFMPI_GLUE_RUNTIME_GPU_STEP_H_
#define TFMPI_GLUE_RUNTIME_GPU_STEP_H_

#include <functional>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow_patches/core/request/request.h"

namespace tfmpi {

// Whether the memory that this kernel allocates is GPU memory.
bool RunsOnGpu(tensorflow::OpKernelContext* context);
// Sets the GPU and the stream of `memory`, but no event. The kernel must run on a GPU.
absl::Status GpuOfKernel(tensorflow::OpKernelContext* context, GpuMemory* memory);
// The same for a stream of XLA, which is a CUstream.
absl::Status GpuOfStream(void* stream, GpuMemory* memory);

// For allocate_temp: memory that the host reads and writes.
tensorflow::AllocatorAttributes OnHost();
// Copy a kernel's tensors to host memory, or from there to the memory of the kernel's device, after
// the work enqueued so far. `copied` gets the copies, once, on a thread on which the kernel may
// continue, perhaps before the call returns. On a CPU nothing is copied: `copied` gets the tensors
// themselves.
using TensorList = std::vector<tensorflow::Tensor>;
using Copied = std::function<void(const absl::Status&, const TensorList&)>;
void ToHost(tensorflow::OpKernelContext* context, TensorList tensors, Copied copied);
void ToKernel(tensorflow::OpKernelContext* context, TensorList tensors, Copied copied);

// A GPU event, taken from a pool and returned to it by the destructor.
class PooledEvent {
 public:
  PooledEvent() = default;
  ~PooledEvent();
  PooledEvent(const PooledEvent&) = delete;
  PooledEvent& operator=(const PooledEvent&) = delete;

  absl::Status Take(Gpu* gpu);
  GpuEvent get() const { return event_; }

 private:
  Gpu* gpu_ = nullptr;
  GpuEvent event_ = nullptr;
};

}  // namespace tfmpi

#endif  // TFMPI_GLUE_RUNTIME_GPU_STEP_H_
