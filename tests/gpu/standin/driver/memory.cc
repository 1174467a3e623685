// The driver's functions for memory.

#include <cstring>

#include "device/operations.h"

using namespace standin;  // NOLINT: this file is the interface of that namespace

STANDIN_API Result cuMemGetInfo_v2(size_t* free, size_t* total) {
  Context* context = CurrentContext();
  if (context == nullptr) return kInvalidContext;
  *free = context->device->memory.free();
  *total = context->device->memory.capacity();
  return kSuccess;
}

STANDIN_API Result cuMemAlloc_v2(Pointer* pointer, size_t bytes) {
  return AllocateDevice(bytes, pointer);
}

STANDIN_API Result cuMemFree_v2(Pointer pointer) { return FreeDevice(pointer); }

STANDIN_API Result cuMemAllocAsync(Pointer* pointer, size_t bytes, void*) {
  return AllocateDevice(bytes, pointer);
}

STANDIN_API Result cuMemAllocFromPoolAsync(Pointer* pointer, size_t bytes, void*, void*) {
  return AllocateDevice(bytes, pointer);
}

STANDIN_API Result cuMemFreeAsync(Pointer pointer, void* handle) {
  Stream* stream = CurrentContext() == nullptr ? nullptr : StreamOf(handle);
  Device* device = DeviceOf(pointer);
  if (stream == nullptr || device == nullptr) return kInvalidValue;
  stream->Push([device, pointer] { device->memory.Free(pointer); });
  return kSuccess;
}

// A single pool without state: allocations come from the device's memory.
STANDIN_API Result cuDeviceGetDefaultMemPool(void** pool, int ordinal) {
  *pool = DeviceAt(ordinal);
  return *pool == nullptr ? kInvalidDevice : kSuccess;
}
STANDIN_API Result cuDeviceGetMemPool(void** pool, int ordinal) {
  return cuDeviceGetDefaultMemPool(pool, ordinal);
}
STANDIN_API Result cuMemPoolCreate(void** pool, const void*) {
  return cuDeviceGetDefaultMemPool(pool, 0);
}
STANDIN_API Result cuMemPoolDestroy(void*) { return kSuccess; }
STANDIN_API Result cuMemPoolSetAttribute(void*, int, void*) { return kSuccess; }
STANDIN_API Result cuMemPoolGetAttribute(void*, int, uint64_t* value) {
  *value = 0;
  return kSuccess;
}
STANDIN_API Result cuMemPoolSetAccess(void*, const void*, size_t) { return kSuccess; }
STANDIN_API Result cuMemPoolTrimTo(void*, size_t) { return kSuccess; }

STANDIN_API Result cuMemGetAddressRange_v2(Pointer* start, size_t* bytes, Pointer pointer) {
  Device* device = DeviceOf(pointer);
  Pointer found = 0;
  size_t length = 0;
  if (device == nullptr || !device->memory.Find(pointer, &found, &length)) return kNotFound;
  if (start != nullptr) *start = found;
  if (bytes != nullptr) *bytes = length;
  return kSuccess;
}

STANDIN_API Result cuMemHostAlloc(void** memory, size_t bytes, unsigned) {
  if (CurrentContext() == nullptr) return kInvalidContext;
  return pinned().Allocate(bytes, false, memory);
}

STANDIN_API Result cuMemAllocHost_v2(void** memory, size_t bytes) {
  return cuMemHostAlloc(memory, bytes, 0);
}

STANDIN_API Result cuMemFreeHost(void* memory) {
  for (const auto& device : devices()) Synchronize(device.get());
  return pinned().Free(memory);
}

STANDIN_API Result cuMemAllocManaged(Pointer* pointer, size_t bytes, unsigned) {
  if (CurrentContext() == nullptr) return kInvalidContext;
  void* memory = nullptr;
  const Result result = pinned().Allocate(bytes, true, &memory);
  *pointer = ToPointer(memory);
  return result;
}

STANDIN_API Result cuMemHostRegister_v2(void* memory, size_t bytes, unsigned) {
  if (CurrentContext() == nullptr) return kInvalidContext;
  return pinned().Register(memory, bytes);
}

STANDIN_API Result cuMemHostUnregister(void* memory) {
  for (const auto& device : devices()) Synchronize(device.get());
  return pinned().Unregister(memory);
}

STANDIN_API Result cuMemHostGetDevicePointer_v2(Pointer* pointer, void* memory, unsigned) {
  void* start = nullptr;
  Pinned::Range range;
  if (!pinned().Find(memory, &start, &range)) return kInvalidValue;
  *pointer = ToPointer(memory);
  return kSuccess;
}

STANDIN_API Result cuMemHostGetFlags(unsigned* flags, void*) {
  *flags = 0;
  return kSuccess;
}

STANDIN_API Result cuMemcpy(Pointer to, Pointer from, size_t bytes) {
  return Copy(to, from, bytes, nullptr, true);
}
STANDIN_API Result cuMemcpyAsync(Pointer to, Pointer from, size_t bytes, void* stream) {
  return Copy(to, from, bytes, stream, false);
}
STANDIN_API Result cuMemcpyHtoD_v2(Pointer to, const void* from, size_t bytes) {
  return Copy(to, ToPointer(from), bytes, nullptr, true);
}
STANDIN_API Result cuMemcpyDtoH_v2(void* to, Pointer from, size_t bytes) {
  return Copy(ToPointer(to), from, bytes, nullptr, true);
}
STANDIN_API Result cuMemcpyDtoD_v2(Pointer to, Pointer from, size_t bytes) {
  return Copy(to, from, bytes, nullptr, true);
}
STANDIN_API Result cuMemcpyHtoDAsync_v2(Pointer to, const void* from, size_t bytes, void* stream) {
  return Copy(to, ToPointer(from), bytes, stream, false);
}
STANDIN_API Result cuMemcpyDtoHAsync_v2(void* to, Pointer from, size_t bytes, void* stream) {
  return Copy(ToPointer(to), from, bytes, stream, false);
}
STANDIN_API Result cuMemcpyDtoDAsync_v2(Pointer to, Pointer from, size_t bytes, void* stream) {
  return Copy(to, from, bytes, stream, false);
}
STANDIN_API Result cuMemcpyPeerAsync(Pointer to, void*, Pointer from, void*, size_t bytes,
                                     void* stream) {
  return Copy(to, from, bytes, stream, false);
}

namespace {

Copy3D Deep(const Copy2D& flat) {
  Copy3D copy{};
  copy.from_x = flat.from_x;
  copy.from_y = flat.from_y;
  copy.from_kind = flat.from_kind;
  copy.from_host = flat.from_host;
  copy.from_device = flat.from_device;
  copy.from_array = flat.from_array;
  copy.from_pitch = flat.from_pitch;
  copy.to_x = flat.to_x;
  copy.to_y = flat.to_y;
  copy.to_kind = flat.to_kind;
  copy.to_host = flat.to_host;
  copy.to_device = flat.to_device;
  copy.to_array = flat.to_array;
  copy.to_pitch = flat.to_pitch;
  copy.width = flat.width;
  copy.height = flat.height;
  copy.depth = 1;
  return copy;
}

}  // namespace

STANDIN_API Result cuMemcpy2D_v2(const Copy2D* copy) {
  return CopyRows(Deep(*copy), nullptr, true);
}
STANDIN_API Result cuMemcpy2DUnaligned_v2(const Copy2D* copy) { return cuMemcpy2D_v2(copy); }
STANDIN_API Result cuMemcpy2DAsync_v2(const Copy2D* copy, void* stream) {
  return CopyRows(Deep(*copy), stream, false);
}
STANDIN_API Result cuMemcpy3D_v2(const Copy3D* copy) { return CopyRows(*copy, nullptr, true); }
STANDIN_API Result cuMemcpy3DAsync_v2(const Copy3D* copy, void* stream) {
  return CopyRows(*copy, stream, false);
}

STANDIN_API Result cuMemsetD8_v2(Pointer to, unsigned char value, size_t count) {
  return FillMemory({to, 0, value, 1, count, 1}, nullptr, true);
}
STANDIN_API Result cuMemsetD16_v2(Pointer to, uint16_t value, size_t count) {
  return FillMemory({to, 0, value, 2, count, 1}, nullptr, true);
}
STANDIN_API Result cuMemsetD32_v2(Pointer to, unsigned value, size_t count) {
  return FillMemory({to, 0, value, 4, count, 1}, nullptr, true);
}
STANDIN_API Result cuMemsetD8Async(Pointer to, unsigned char value, size_t count, void* stream) {
  return FillMemory({to, 0, value, 1, count, 1}, stream, false);
}
STANDIN_API Result cuMemsetD16Async(Pointer to, uint16_t value, size_t count, void* stream) {
  return FillMemory({to, 0, value, 2, count, 1}, stream, false);
}
STANDIN_API Result cuMemsetD32Async(Pointer to, unsigned value, size_t count, void* stream) {
  return FillMemory({to, 0, value, 4, count, 1}, stream, false);
}

namespace {

constexpr int kKindHost = 1, kKindDevice = 2;

Result PointerAttribute(void* data, int attribute, Pointer pointer) {
  Device* device = DeviceOf(pointer);
  void* start = nullptr;
  Pinned::Range range{};
  const bool host =
      device == nullptr && pinned().Find(reinterpret_cast<void*>(pointer), &start, &range);
  if (device == nullptr && !host) return kInvalidValue;
  Pointer first = ToPointer(start);
  size_t bytes = range.bytes;
  if (device != nullptr && !device->memory.Find(pointer, &first, &bytes)) return kInvalidValue;
  Device* owner = device != nullptr ? device : DeviceAt(0);
  switch (attribute) {
    case 1:  // the context
      *static_cast<void**>(data) = &owner->context;
      return kSuccess;
    case 2:  // the kind of memory
      *static_cast<unsigned*>(data) = device != nullptr || range.managed ? kKindDevice : kKindHost;
      return kSuccess;
    case 3:  //  the device address
      *static_cast<Pointer*>(data) = pointer;
      return kSuccess;
    case 4:  //  the host address
      if (device != nullptr) return kInvalidValue;
      *static_cast<Pointer*>(data) = pointer;
      return kSuccess;
    case 7:  //  an ID of the allocation
      *static_cast<uint64_t*>(data) = first;
      return kSuccess;
    case 8:  // whether it is managed
      *static_cast<unsigned char*>(data) = range.managed;
      return kSuccess;
    case 9:  // the device's number
      for (size_t i = 0; i < devices().size(); ++i) {
        if (devices()[i].get() == owner) *static_cast<int*>(data) = static_cast<int>(i);
      }
      return kSuccess;
    case 11:  //  the start of the allocation
      *static_cast<Pointer*>(data) = first;
      return kSuccess;
    case 12:  //  its size
      *static_cast<size_t*>(data) = bytes;
      return kSuccess;
    case 13:  // whether it is mapped
      *static_cast<unsigned char*>(data) = 1;
      return kSuccess;
    default:
      *static_cast<int*>(data) = 0;
      return kSuccess;
  }
}

}  // namespace

STANDIN_API Result cuPointerGetAttribute(void* data, int attribute, Pointer pointer) {
  return PointerAttribute(data, attribute, pointer);
}

// For unknown pointers all attributes are zero, without an error.
STANDIN_API Result cuPointerGetAttributes(unsigned count, const int* attributes, void** data,
                                          Pointer pointer) {
  for (unsigned i = 0; i < count; ++i) {
    if (PointerAttribute(data[i], attributes[i], pointer) != kSuccess) {
      const bool wide = attributes[i] == 1 || attributes[i] == 3 || attributes[i] == 4;
      std::memset(data[i], attributes[i] == 9 ? 0xff : 0, wide ? 8 : attributes[i] == 8 ? 1 : 4);
    }
  }
  return kSuccess;
}

STANDIN_API Result cuPointerSetAttribute(const void*, int, Pointer) { return kSuccess; }

// No memory of other processes is accessible, so ranks stage instead of sharing.
STANDIN_API Result cuIpcGetMemHandle(void*, Pointer) { return kNotSupported; }
STANDIN_API Result cuIpcCloseMemHandle(Pointer) { return kNotSupported; }
