// A GPU, as the engine sees it: streams, events, copies, pinned memory. The seam between the core
// and CUDA.
//
// driver.cc implements it by the CUDA driver, which it looks for at run time: nothing of CUDA is
// linked. tests/core/device/simulated_gpu.h does by threads. Streams and events are the driver's
// own handles, since TensorFlow's streams come from outside.
//
// Ranks that share a GPU reach each other's memory by handles, and the GPU adds it up for them.
//
// Any thread may call any function; what is enqueued on one stream runs in the order of the calls.
// Nothing here waits for the GPU unless it says so.

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

// What another process opens memory by. Sent as bytes.
struct GpuHandle {
  char bytes[64];
  uint64_t process[2];  // drawn at random: who opens its own memory needs no driver
  uint64_t address;     // in that process
};

// A kernel of ours: the one that adds up what ranks hold on one GPU.
class GpuSum {
 public:
  virtual ~GpuSum() = default;
  // Enqueued: element i of `out` becomes the sum over k of scales[k] * sources[k][i]. A real type;
  // half and bfloat16 are summed in float32 and rounded once. Sources lie at multiples of 16 bytes,
  // and none is `out`. The same call on two ranks gives the same bits.
  virtual Status Enqueue(const std::vector<const void*>& sources, const std::vector<double>& scales,
                         void* out, size_t count, DataType type, GpuStream stream) = 0;
};

class Gpu {
 public:
  virtual ~Gpu() = default;

  // For people, and the same for all processes that use it: "NVIDIA H100 at 0000:3b:00.0 of HOST".
  virtual std::string description() const = 0;

  // For what other libraries do on the calling thread from now on: it is of this GPU, and allowed
  // while a stream of this process is being captured into a CUDA graph.
  virtual Status MakeCurrent() = 0;

  // Of highest priority, and independent of the default stream.
  virtual Status NewStream(GpuStream* stream) = 0;
  virtual Status NewEvent(GpuEvent* event) = 0;
  // May be called while work that uses it is under way.
  virtual void Delete(GpuStream stream) = 0;
  virtual void Delete(GpuEvent event) = 0;

  // `event` stands for all that was enqueued on `stream` before; it forgets what it stood for.
  virtual Status Record(GpuEvent event, GpuStream stream) = 0;
  // What is enqueued on `stream` after this begins when what `event` stands for now has ended.
  virtual Status Wait(GpuStream stream, GpuEvent event) = 0;
  // Whether what `event` stands for has ended. Fails if work of this GPU has failed. An event that
  // was never recorded has ended.
  virtual Status Query(GpuEvent event, bool* ended) = 0;

  // Enqueued. Either side is this GPU's memory or pinned memory, which is the caller's until then.
  virtual Status Copy(void* to, const void* from, size_t bytes, GpuStream stream) = 0;

  // Host memory that the GPU reaches by itself. May wait for the GPU.
  virtual Status NewPinned(size_t bytes, void** memory) = 0;
  // Waits for what uses it.
  virtual void DeletePinned(void* memory) = 0;
  // Makes memory that the host has anyway such memory, until Unregister, which waits for what uses
  // it: one that processes share, say. No page of it may be registered already by this process.
  virtual Status Register(void* memory, size_t bytes) = 0;
  virtual void Unregister(void* memory) = 0;
  // Memory of the GPU. May wait for it, too.
  virtual Status NewMemory(size_t bytes, void** memory) = 0;
  virtual void DeleteMemory(void* memory) = 0;

  // Memory of the GPU that other processes can open; for DeleteMemory, when they have closed it.
  virtual Status NewSharedMemory(size_t bytes, void** memory, GpuHandle* handle) = 0;
  // That of another process of this machine, on this GPU.
  virtual Status OpenMemory(const GpuHandle& handle, void** memory) = 0;
  virtual void CloseMemory(const GpuHandle& handle, void* memory) = 0;
  // Of so many sources.
  virtual Status NewSum(size_t sources, std::unique_ptr<GpuSum>* sum) = 0;
};

// The GPU that `stream` belongs to, one object for each for as long as the process lives; null with
// the reason in `status` where the driver is not there or does not know it. The driver's.
Gpu* GpuOf(GpuStream stream, Status* status);

}  // namespace tfmpi

#endif  // TFMPI_CORE_DEVICE_GPU_H_
