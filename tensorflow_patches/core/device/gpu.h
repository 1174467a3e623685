// A GPU as the engine uses it: streams, events, copies, pinned memory. The interface between the
// core and CUDA.
//
// driver.cc implements it with the CUDA driver, which it looks up at run time, so CUDA is not
// linked. tests/core/device/simulated_gpu.h implements it with threads. Streams and events are the
// driver's own handles, since TensorFlow passes its streams in.
//
// Ranks that share a GPU open each other's memory by handles; the GPU sums it (GpuSum).
//
// Any thread may call any function; work enqueued on one stream runs in the order of the calls. No
// function waits for the GPU unless its comment says so.

#ifndef TFMPI_CORE_DEVICE_GPU_H_
#define TFMPI_CORE_DEVICE_GPU_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tensorflow_patches/core/base/status.h"
#include "tensorflow_patches/core/base/types.h"

namespace tfmpi {

using GpuStream = struct GpuStreamHandle*;  // a CUstream
using GpuEvent = struct GpuEventHandle*;    // a CUevent

// A handle by which another process opens memory. Sent as bytes.
struct GpuHandle {
  char bytes[64];
  uint64_t process[2];  // a random number of the process that owns the memory
  uint64_t address;     // in that process, which opens its own memory by it, without CUDA
};

// Our own kernel, which sums the data of several ranks on one GPU.
class GpuSum {
 public:
  virtual ~GpuSum() = default;
  // Enqueues: element i of `out` becomes the sum over k of scales[k] * sources[k][i]. For real
  // types; half and bfloat16 are summed in float32 and rounded once. Sources must be aligned to 16
  // bytes and differ from `out`. The same call on two ranks gives the same bits.
  virtual Status Enqueue(const std::vector<const void*>& sources, const std::vector<double>& scales,
                         void* out, size_t count, DataType type, GpuStream stream) = 0;
};

class Gpu {
 public:
  virtual ~Gpu() = default;

  // For people, the same in all processes that use this GPU: "NVIDIA H100 at 0000:3b:00.0 of HOST".
  virtual std::string description() const = 0;

  // Prepares the calling thread for other libraries: their calls now refer to this GPU, and are
  // allowed while a stream of this process is being captured into a CUDA graph.
  virtual Status MakeCurrent() = 0;

  // With the highest priority, and independent of the default stream.
  virtual Status NewStream(GpuStream* stream) = 0;
  virtual Status NewEvent(GpuEvent* event) = 0;
  // Allowed while work that uses it is in flight.
  virtual void Delete(GpuStream stream) = 0;
  virtual void Delete(GpuEvent event) = 0;

  // `event` now represents everything enqueued on `stream` so far, and nothing recorded earlier.
  virtual Status Record(GpuEvent event, GpuStream stream) = 0;
  // Work enqueued on `stream` after this call waits for what `event` represents now.
  virtual Status Wait(GpuStream stream, GpuEvent event) = 0;
  // Whether what `event` represents has ended. Fails if work on this GPU has failed. An event that
  // was never recorded counts as ended.
  virtual Status Query(GpuEvent event, bool* ended) = 0;

  // Enqueues a copy. Each side is memory of this GPU, or pinned memory, and must stay valid until
  // the copy has ended.
  virtual Status Copy(void* to, const void* from, size_t bytes, GpuStream stream) = 0;

  // Host memory that the GPU can access directly. May wait for the GPU.
  virtual Status NewPinned(size_t bytes, void** memory) = 0;
  // Waits for work that uses it.
  virtual void DeletePinned(void* memory) = 0;
  // Turns existing host memory, such as memory shared between processes, into pinned memory until
  // Unregister, which waits for work that uses it. No page may already be registered by this
  // process.
  virtual Status Register(void* memory, size_t bytes) = 0;
  virtual void Unregister(void* memory) = 0;
  // Memory of the GPU. NewMemory may wait for the GPU; DeleteMemory waits for work that uses it.
  virtual Status NewMemory(size_t bytes, void** memory) = 0;
  virtual void DeleteMemory(void* memory) = 0;

  // GPU memory that other processes can open; free it by DeleteMemory after they have closed it.
  virtual Status NewSharedMemory(size_t bytes, void** memory, GpuHandle* handle) = 0;
  // Opens memory of another process on this machine, on this GPU.
  virtual Status OpenMemory(const GpuHandle& handle, void** memory) = 0;
  virtual void CloseMemory(const GpuHandle& handle, void* memory) = 0;
  // `sources`: their number in each call of Enqueue.
  virtual Status NewSum(size_t sources, std::unique_ptr<GpuSum>* sum) = 0;
};

// The GPU that `stream` belongs to, one object per GPU for the lifetime of the process. Null, with
// the reason in `status`, if there is no driver or it does not know the stream. Not owned by the
// caller.
Gpu* GpuOf(GpuStream stream, Status* status);

}  // namespace tfmpi

#endif  // TFMPI_CORE_DEVICE_GPU_H_
