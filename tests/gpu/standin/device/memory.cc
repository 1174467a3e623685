#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "device/state.h"

namespace standin {
namespace {

constexpr size_t kAlignment = 512;

[[noreturn]] void Die(const char* what) {
  std::perror(what);
  std::abort();
}

}  // namespace

Memory::Memory(size_t capacity) : capacity_(capacity) {
  file_ = memfd_create("stand-in GPU", MFD_CLOEXEC);
  if (file_ < 0 || ftruncate(file_, static_cast<off_t>(capacity)) != 0) Die("stand-in GPU: memory");
  const int flags = MAP_SHARED | MAP_NORESERVE;
  void* shadow = mmap(nullptr, capacity, PROT_READ | PROT_WRITE, flags, file_, 0);
  void* base =
      mmap(nullptr, capacity, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (shadow == MAP_FAILED || base == MAP_FAILED) Die("stand-in GPU: addresses");
  shadow_ = static_cast<char*>(shadow);
  base_ = reinterpret_cast<Pointer>(base);
}

Result Memory::Allocate(size_t bytes, Pointer* pointer) {
  if (bytes == 0) return kInvalidValue;
  bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  std::lock_guard<std::mutex> lock(mutex_);
  size_t at = 0;  //  the first gap that is large enough
  for (const auto& [start, length] : allocations_) {
    if (start - at >= bytes) break;
    at = start + length;
  }
  if (capacity_ - at < bytes) return kOutOfMemory;
  allocations_[at] = bytes;
  used_ += bytes;
  *pointer = base_ + at;
  return kSuccess;
}

Result Memory::Free(Pointer pointer) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = allocations_.find(pointer - base_);
  if (found == allocations_.end()) return kInvalidValue;
  const auto [start, bytes] = *found;
  // Pages that contain nothing else go back to the system, and are zero at their next use.
  const size_t page = 4096, first = (start + page - 1) / page * page;
  const size_t last = (start + bytes) / page * page;
  if (last > first) {
    fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(first),
              static_cast<off_t>(last - first));
    std::memset(shadow_ + start, 0, first - start);
    std::memset(shadow_ + last, 0, start + bytes - last);
  } else {
    std::memset(shadow_ + start, 0, bytes);
  }
  used_ -= bytes;
  allocations_.erase(found);
  return kSuccess;
}

bool Memory::Find(Pointer pointer, Pointer* start, size_t* bytes) const {
  if (!Contains(pointer)) return false;
  std::lock_guard<std::mutex> lock(mutex_);
  auto after = allocations_.upper_bound(pointer - base_);
  if (after == allocations_.begin()) return false;
  const auto& [offset, length] = *--after;
  if (pointer - base_ >= offset + length) return false;
  *start = base_ + offset;
  *bytes = length;
  return true;
}

bool Memory::Holds(const void* bytes, size_t length) const {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [start, size] : allocations_) {
    // Searches only what was written, because reading the rest would allocate it.
    const auto end = static_cast<off_t>(start + size);
    off_t at = lseek(file_, static_cast<off_t>(start), SEEK_DATA);
    while (at >= 0 && at < end) {
      const off_t hole = std::min(end, lseek(file_, at, SEEK_HOLE));
      if (memmem(shadow_ + at, hole - at, bytes, length) != nullptr) return true;
      at = lseek(file_, hole, SEEK_DATA);
    }
  }
  return false;
}

size_t Memory::free() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return capacity_ - used_;
}

Result Pinned::Allocate(size_t bytes, bool managed, void** memory) {
  if (bytes == 0) return kInvalidValue;
  void* made = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (made == MAP_FAILED) return kOutOfMemory;
  std::lock_guard<std::mutex> lock(mutex_);
  ranges_[reinterpret_cast<uintptr_t>(made)] = {bytes, true, managed};
  *memory = made;
  return kSuccess;
}

Result Pinned::Free(void* memory) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = ranges_.find(reinterpret_cast<uintptr_t>(memory));
  if (found == ranges_.end() || !found->second.ours) return kInvalidValue;
  munmap(memory, found->second.bytes);
  ranges_.erase(found);
  return kSuccess;
}

Result Pinned::Register(void* memory, size_t bytes) {
  const auto start = reinterpret_cast<uintptr_t>(memory);
  if (memory == nullptr || bytes == 0) return kInvalidValue;
  std::lock_guard<std::mutex> lock(mutex_);
  const auto after = ranges_.lower_bound(start);
  if (after != ranges_.end() && after->first < start + bytes) return kAlreadyRegistered;
  if (after != ranges_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second.bytes > start) return kAlreadyRegistered;
  }
  ranges_[start] = {bytes, false, false};
  return kSuccess;
}

Result Pinned::Unregister(void* memory) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = ranges_.find(reinterpret_cast<uintptr_t>(memory));
  if (found == ranges_.end() || found->second.ours) return kNotRegistered;
  ranges_.erase(found);
  return kSuccess;
}

bool Pinned::Find(const void* pointer, void** start, Range* range) const {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  std::lock_guard<std::mutex> lock(mutex_);
  auto after = ranges_.upper_bound(address);
  if (after == ranges_.begin()) return false;
  --after;
  if (address >= after->first + after->second.bytes) return false;
  *start = reinterpret_cast<void*>(after->first);
  *range = after->second;
  return true;
}

Pinned& pinned() {
  static auto* all = new Pinned;
  return *all;
}

Device* DeviceOf(Pointer pointer) {
  for (const auto& device : devices()) {
    if (device->memory.Contains(pointer)) return device.get();
  }
  return nullptr;
}

void* Reach(Pointer pointer) {
  Device* device = DeviceOf(pointer);
  return device != nullptr ? device->memory.Shadow(pointer) : reinterpret_cast<void*>(pointer);
}

}  // namespace standin
