// The GPU on which a kernel runs, in the form that requests use.
//
// TensorFlow enqueues a kernel's work on a stream, and the kernel returns; accesses to its memory
// are ordered only by that stream. So a request waits for an event of the stream, and the stream
// for the request's result (core/gpu/staged/staged_reduction.h).

#ifndef TFMPI_GLUE_RUNTIME_GPU_STEP_H_
#define TFMPI_GLUE_RUNTIME_GPU_STEP_H_

#include <functional>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow_patches/core/request/request.h"

namespace tfmpi {

// Whether the memory that this kernel allocates is GPU memory.
bool RunsOnGpu(tensorflow::OpKernelContext* context);
// For a kernel that runs on a GPU, without an event.
absl::Status GpuOfKernel(tensorflow::OpKernelContext* context, GpuMemory* memory);
// For a stream of XLA's, a CUstream.
absl::Status GpuOfStream(void* stream, GpuMemory* memory);

// For allocate_temp: memory that the host reads and writes.
tensorflow::AllocatorAttributes OnHost();
// Copies a kernel's tensors to host memory, and back to the kernel's memory, after the work
// enqueued before. On other devices than GPUs, and without elements, returns the tensors themselves
// at once. `copied` runs once, on a thread on which the kernel may continue.
using TensorList = std::vector<tensorflow::Tensor>;
using Copied = std::function<void(const absl::Status&, const TensorList&)>;
void ToHost(tensorflow::OpKernelContext* context, TensorList tensors, Copied copied);
void ToKernel(tensorflow::OpKernelContext* context, TensorList tensors, Copied copied);

// An event of a GPU, from a pool to which it returns.
class KeptEvent {
 public:
  KeptEvent() = default;
  ~KeptEvent();
  KeptEvent(const KeptEvent&) = delete;
  KeptEvent& operator=(const KeptEvent&) = delete;

  absl::Status Take(Gpu* gpu);
  GpuEvent get() const { return event_; }

 private:
  Gpu* gpu_ = nullptr;
  GpuEvent event_ = nullptr;
};

}  // namespace tfmpi

#endif  // TFMPI_GLUE_RUNTIME_GPU_STEP_H_
