#include "device/operations.h"

#include <cstdio>
#include <cstring>

namespace standin {
namespace {

bool IsPageable(Pointer pointer) {
  void* start = nullptr;
  Pinned::Range range;
  return DeviceOf(pointer) == nullptr &&
         !pinned().Find(reinterpret_cast<void*>(pointer), &start, &range);
}

void CountCopy(Pointer to, Pointer from) {
  const bool to_device = DeviceOf(to) != nullptr, from_device = DeviceOf(from) != nullptr;
  Add(to_device && from_device ? kOnDevice : to_device ? kToDevice : kToHost);
}

// For device memory within one allocation.
bool Valid(Pointer pointer, size_t bytes) {
  Device* device = DeviceOf(pointer);
  if (device == nullptr) return pointer != 0;
  Pointer start = 0;
  size_t length = 0;
  const bool found = device->memory.Find(pointer, &start, &length);
  if (found && pointer + bytes <= start + length) return true;
  std::fprintf(stderr, "stand-in GPU: %zu bytes at %#lx are not allocated\n", bytes,
               static_cast<unsigned long>(pointer));
  return false;
}

}  // namespace

Result Copy(Pointer to, Pointer from, size_t bytes, void* handle, bool wait) {
  Stream* stream = StreamOf(handle);
  if (CurrentContext() == nullptr) return kInvalidContext;
  if (stream == nullptr) return kInvalidHandle;
  if (bytes == 0) return kSuccess;
  if (!Valid(to, bytes) || !Valid(from, bytes)) return kInvalidValue;
  CountCopy(to, from);
  const bool captured = stream->capturing() != nullptr;
  Trace("copy %zu bytes from %#zx to %#zx on stream %zu%s", bytes, size_t{from}, size_t{to},
        size_t{stream->id}, captured ? ", captured" : "");
  if (IsPageable(from) && !wait && !captured) {
    auto staged = std::make_shared<std::vector<char>>(bytes);
    std::memcpy(staged->data(), Reach(from), bytes);
    stream->Push([to, staged] { std::memcpy(Reach(to), staged->data(), staged->size()); });
  } else {
    stream->Push([to, from, bytes] { std::memmove(Reach(to), Reach(from), bytes); });
  }
  if (!captured && (wait || IsPageable(to))) stream->Synchronize();
  return kSuccess;
}

Copy3D Rows(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
            size_t height) {
  Copy3D copy{};
  copy.from_kind = copy.to_kind = 4;  //  derived from the address
  copy.from_device = ToPointer(from);
  copy.to_device = ToPointer(to);
  copy.from_pitch = from_pitch;
  copy.to_pitch = to_pitch;
  copy.width = width;
  copy.height = height;
  copy.depth = 1;
  return copy;
}

Operation RowsOperation(const Copy3D& copy) {
  return [copy] {
    const Pointer from = copy.from_kind == 1 ? ToPointer(copy.from_host) : copy.from_device;
    const Pointer to = copy.to_kind == 1 ? ToPointer(copy.to_host) : copy.to_device;
    auto* source = static_cast<const char*>(Reach(from));
    auto* target = static_cast<char*>(Reach(to));
    for (size_t z = 0; z < copy.depth; ++z) {
      for (size_t y = 0; y < copy.height; ++y) {
        const size_t at = (copy.from_y + y) + (copy.from_z + z) * copy.from_height;
        const size_t into = (copy.to_y + y) + (copy.to_z + z) * copy.to_height;
        std::memmove(target + copy.to_x + into * copy.to_pitch,
                     source + copy.from_x + at * copy.from_pitch, copy.width);
      }
    }
  };
}

Result CopyRows(const Copy3D& copy, void* handle, bool wait) {
  Stream* stream = StreamOf(handle);
  if (CurrentContext() == nullptr) return kInvalidContext;
  if (stream == nullptr) return kInvalidHandle;
  if (copy.from_array != nullptr || copy.to_array != nullptr) return Unsupported("arrays");
  const Pointer from = copy.from_kind == 1 ? ToPointer(copy.from_host) : copy.from_device;
  const Pointer to = copy.to_kind == 1 ? ToPointer(copy.to_host) : copy.to_device;
  CountCopy(to, from);
  stream->Push(RowsOperation(copy));
  const bool pageable = IsPageable(to) || IsPageable(from);
  if (stream->capturing() == nullptr && (wait || pageable)) stream->Synchronize();
  return kSuccess;
}

Operation FillOperation(const Fill& fill) {
  return [fill] {
    const size_t rows = fill.height == 0 ? 1 : fill.height;
    for (size_t row = 0; row < rows; ++row) {
      FillElements(fill.to + row * fill.pitch, fill.value, fill.bytes, fill.width);
    }
  };
}

Result FillMemory(const Fill& fill, void* handle, bool wait) {
  Stream* stream = StreamOf(handle);
  if (CurrentContext() == nullptr) return kInvalidContext;
  if (stream == nullptr) return kInvalidHandle;
  if (fill.width == 0) return kSuccess;
  if (!Valid(fill.to, fill.width * fill.bytes)) return kInvalidValue;
  Add(kFills);
  Trace("fill %zu elements at %#zx on stream %zu", fill.width, size_t{fill.to}, size_t{stream->id});
  stream->Push(FillOperation(fill));
  if (wait && stream->capturing() == nullptr) stream->Synchronize();
  return kSuccess;
}

Result Launch(void* handle) {
  if (CurrentContext() == nullptr) return kInvalidContext;
  Stream* stream = StreamOf(handle);
  if (stream == nullptr) return kInvalidHandle;
  Add(kKernels);
  Trace("launch on stream %zu", size_t{stream->id});
  // Enqueued on the stream, so that it takes time if there are delays.
  if (settings().delay_us > 0 || stream->capturing() != nullptr) stream->Push([] {});
  return kSuccess;
}

Result Call(void* handle, HostFunction function, void* argument) {
  Stream* stream = StreamOf(handle);
  if (stream == nullptr) return kInvalidHandle;
  Add(kHostCalls);
  Trace("host call on stream %zu", size_t{stream->id});
  stream->Push([function, argument] { function(argument); });
  return kSuccess;
}

Result AllocateDevice(size_t bytes, Pointer* pointer) {
  Context* context = CurrentContext();
  if (context == nullptr) return kInvalidContext;
  return context->device->memory.Allocate(bytes, pointer);
}

Result FreeDevice(Pointer pointer) {
  if (pointer == 0) return kSuccess;
  Device* device = DeviceOf(pointer);
  if (device == nullptr) return pinned().Free(reinterpret_cast<void*>(pointer));  // managed
  Synchronize(device);
  return device->memory.Free(pointer);
}

Context* PrimaryContext(int ordinal) {
  Device* device = DeviceAt(ordinal);
  if (device == nullptr) return nullptr;
  if (context_stack().empty()) context_stack().push_back(nullptr);
  context_stack().back() = &device->context;
  return &device->context;
}

}  // namespace standin
