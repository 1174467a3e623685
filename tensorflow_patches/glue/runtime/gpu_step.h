// The GPU on which a kernel runs, as requests name it.
//
// TensorFlow enqueues a kernel's work on a stream, and the kernel returns; that stream's order is
// all that its memory obeys. So a request waits for an event of that stream, and that stream for
// the request's result (core/gpu/staged/staged_reduction.h).

#ifndef TFMPI_GLUE_RUNTIME_GPU_STEP_H_
#define TFMPI_GLUE_RUNTIME_GPU_STEP_H_

#include <functional>
#include <memory>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow_patches/core/request/request.h"

namespace tfmpi {

// Whether the memory that this kernel allocates is a GPU's.
bool RunsOnGpu(tensorflow::OpKernelContext* context);
// That of a kernel that runs on a GPU, without an event.
absl::Status GpuOfKernel(tensorflow::OpKernelContext* context, GpuMemory* memory);
// That of a stream of XLA's, a CUstream.
absl::Status GpuOfStream(void* stream, GpuMemory* memory);

// Where a kernel has memory that the host reads and writes: for allocate_temp.
tensorflow::AllocatorAttributes OnHost();
// A kernel's tensors in memory that the host reads, and back in the kernel's own, when what was
// enqueued before has ended. Copies on a GPU; elsewhere, and where there are no elements, the
// tensors themselves, at once. `copied` runs once, on a thread that may go on with the kernel.
using TensorList = std::vector<tensorflow::Tensor>;
using Copied = std::function<void(const absl::Status&, const TensorList&)>;
void ToHost(tensorflow::OpKernelContext* context, TensorList tensors, Copied copied);
void ToKernel(tensorflow::OpKernelContext* context, TensorList tensors, Copied copied);

// An event of a GPU, taken from those that are kept for the next one, and given back.
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
