// The runtime's functions (libcudart) for memory, streams and events: the driver's, with device 0's
// context if a thread has none.

#include <cstring>

#include "device/operations.h"

using namespace standin;  // NOLINT: this file is the interface of that namespace

STANDIN_API Result cuMemGetInfo_v2(size_t*, size_t*);
STANDIN_API Result cuPointerGetAttribute(void*, int, Pointer);
STANDIN_API Result cuMemHostAlloc(void**, size_t, unsigned);
STANDIN_API Result cuMemFreeHost(void*);
STANDIN_API Result cuMemHostRegister_v2(void*, size_t, unsigned);
STANDIN_API Result cuMemHostUnregister(void*);
STANDIN_API Result cuMemAllocManaged(Pointer*, size_t, unsigned);
STANDIN_API Result cuMemFreeAsync(Pointer, void*);
STANDIN_API Result cuStreamCreateWithPriority(void**, unsigned, int);
STANDIN_API Result cuStreamDestroy_v2(void*);
STANDIN_API Result cuStreamQuery(void*);
STANDIN_API Result cuStreamSynchronize(void*);
STANDIN_API Result cuStreamWaitEvent(void*, void*, unsigned);
STANDIN_API Result cuStreamGetPriority(void*, int*);
STANDIN_API Result cuStreamIsCapturing(void*, int*);
STANDIN_API Result cuEventCreate(void**, unsigned);
STANDIN_API Result cuEventDestroy_v2(void*);
STANDIN_API Result cuEventRecord(void*, void*);
STANDIN_API Result cuEventQuery(void*);
STANDIN_API Result cuEventSynchronize(void*);
STANDIN_API Result cuEventElapsedTime(float*, void*, void*);

namespace {

void NeedContext() {
  if (CurrentContext() == nullptr) PrimaryContext(0);
}

}  // namespace

STANDIN_API Result cudaMalloc(void** memory, size_t bytes) {
  NeedContext();
  Pointer pointer = 0;
  const Result result = bytes == 0 ? kSuccess : AllocateDevice(bytes, &pointer);
  *memory = reinterpret_cast<void*>(pointer);
  return result;
}
STANDIN_API Result cudaFree(void* memory) {
  NeedContext();
  return FreeDevice(ToPointer(memory));
}
STANDIN_API Result cudaMallocAsync(void** memory, size_t bytes, void*) {
  return cudaMalloc(memory, bytes);
}
STANDIN_API Result cudaFreeAsync(void* memory, void* stream) {
  NeedContext();
  return cuMemFreeAsync(ToPointer(memory), stream);
}
STANDIN_API Result cudaMallocManaged(void** memory, size_t bytes, unsigned flags) {
  NeedContext();
  Pointer pointer = 0;
  const Result result = cuMemAllocManaged(&pointer, bytes, flags);
  *memory = reinterpret_cast<void*>(pointer);
  return result;
}
STANDIN_API Result cudaHostAlloc(void** memory, size_t bytes, unsigned flags) {
  NeedContext();
  return cuMemHostAlloc(memory, bytes, flags);
}
STANDIN_API Result cudaMallocHost(void** memory, size_t bytes) {
  return cudaHostAlloc(memory, bytes, 0);
}
STANDIN_API Result cudaFreeHost(void* memory) { return cuMemFreeHost(memory); }
STANDIN_API Result cudaHostRegister(void* memory, size_t bytes, unsigned flags) {
  NeedContext();
  return cuMemHostRegister_v2(memory, bytes, flags);
}
STANDIN_API Result cudaHostUnregister(void* memory) { return cuMemHostUnregister(memory); }
STANDIN_API Result cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  *device = host;
  return kSuccess;
}
STANDIN_API Result cudaHostGetFlags(unsigned* flags, void* memory) {
  void* start = nullptr;
  Pinned::Range range;
  *flags = 0;
  return pinned().Find(memory, &start, &range) ? kSuccess : kInvalidValue;
}
STANDIN_API Result cudaMemGetInfo(size_t* free, size_t* total) {
  NeedContext();
  return cuMemGetInfo_v2(free, total);
}

STANDIN_API Result cudaPointerGetAttributes(void* attributes, const void* memory) {
  struct {
    int kind, device;
    const void *for_device, *for_host;
  } values{0, 0, nullptr, memory};  //  for pageable memory
  void* start = nullptr;
  Pinned::Range range{};
  NeedContext();
  if (DeviceOf(ToPointer(memory)) != nullptr) {
    values = {2, 0, memory, nullptr};
    cuPointerGetAttribute(&values.device, 9, ToPointer(memory));
  } else if (pinned().Find(memory, &start, &range)) {
    values = {range.managed ? 3 : 1, 0, memory, memory};
  }
  std::memcpy(attributes, &values, sizeof(values));
  return kSuccess;
}

STANDIN_API Result cudaMemcpy(void* to, const void* from, size_t bytes, int) {
  NeedContext();
  return Copy(ToPointer(to), ToPointer(from), bytes, nullptr, true);
}
STANDIN_API Result cudaMemcpyAsync(void* to, const void* from, size_t bytes, int, void* stream) {
  NeedContext();
  return Copy(ToPointer(to), ToPointer(from), bytes, stream, false);
}
STANDIN_API Result cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes,
                                       void* stream) {
  return cudaMemcpyAsync(to, from, bytes, 4, stream);
}
STANDIN_API Result cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                                     size_t width, size_t height, int, void* stream) {
  NeedContext();
  return CopyRows(Rows(to, to_pitch, from, from_pitch, width, height), stream, false);
}
STANDIN_API Result cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                                size_t width, size_t height, int) {
  NeedContext();
  return CopyRows(Rows(to, to_pitch, from, from_pitch, width, height), nullptr, true);
}
STANDIN_API Result cudaMemset(void* to, int value, size_t bytes) {
  NeedContext();
  return FillMemory({ToPointer(to), 0, static_cast<unsigned>(value), 1, bytes, 1}, nullptr, true);
}
STANDIN_API Result cudaMemsetAsync(void* to, int value, size_t bytes, void* stream) {
  NeedContext();
  return FillMemory({ToPointer(to), 0, static_cast<unsigned>(value), 1, bytes, 1}, stream, false);
}
STANDIN_API Result cudaMemset2DAsync(void* to, size_t pitch, int value, size_t width, size_t height,
                                     void* stream) {
  NeedContext();
  const Fill fill{ToPointer(to), pitch, static_cast<unsigned>(value), 1, width, height};
  return FillMemory(fill, stream, false);
}

STANDIN_API Result cudaStreamCreateWithPriority(void** stream, unsigned flags, int priority) {
  NeedContext();
  return cuStreamCreateWithPriority(stream, flags, priority);
}
STANDIN_API Result cudaStreamCreateWithFlags(void** stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
STANDIN_API Result cudaStreamCreate(void** stream) {
  return cudaStreamCreateWithPriority(stream, 0, 0);
}
STANDIN_API Result cudaStreamDestroy(void* stream) { return cuStreamDestroy_v2(stream); }
STANDIN_API Result cudaStreamQuery(void* stream) {
  NeedContext();
  return cuStreamQuery(stream);
}
STANDIN_API Result cudaStreamSynchronize(void* stream) {
  NeedContext();
  return cuStreamSynchronize(stream);
}
STANDIN_API Result cudaStreamWaitEvent(void* stream, void* event, unsigned flags) {
  NeedContext();
  return cuStreamWaitEvent(stream, event, flags);
}
STANDIN_API Result cudaStreamGetPriority(void* stream, int* priority) {
  NeedContext();
  return cuStreamGetPriority(stream, priority);
}
STANDIN_API Result cudaStreamIsCapturing(void* stream, int* status) {
  NeedContext();
  return cuStreamIsCapturing(stream, status);
}

STANDIN_API Result cudaEventCreateWithFlags(void** event, unsigned flags) {
  NeedContext();
  return cuEventCreate(event, flags);
}
STANDIN_API Result cudaEventCreate(void** event) { return cudaEventCreateWithFlags(event, 0); }
STANDIN_API Result cudaEventDestroy(void* event) { return cuEventDestroy_v2(event); }
STANDIN_API Result cudaEventRecord(void* event, void* stream) {
  NeedContext();
  return cuEventRecord(event, stream);
}
STANDIN_API Result cudaEventQuery(void* event) { return cuEventQuery(event); }
STANDIN_API Result cudaEventSynchronize(void* event) { return cuEventSynchronize(event); }
STANDIN_API Result cudaEventElapsedTime(float* milliseconds, void* from, void* to) {
  return cuEventElapsedTime(milliseconds, from, to);
}
