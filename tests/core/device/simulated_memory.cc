#include "tests/core/device/simulated_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <iterator>

namespace tfmpi {
namespace {

constexpr size_t kPage = 4096;

size_t Rounded(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

char* Map(size_t bytes, int protection) {
  void* const memory =
      mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<char*>(memory);
}

}  // namespace

SimulatedMemory::SimulatedMemory(size_t device_bytes)
    : bytes_(Rounded(device_bytes)),
      outside_(Map(bytes_, PROT_NONE)),
      inside_(Map(bytes_, PROT_READ | PROT_WRITE)) {}

SimulatedMemory::~SimulatedMemory() {
  for (const auto& [start, block] : blocks_) {
    if (block.pinned && !block.registered) munmap(block.start, Rounded(block.bytes) + kPage);
  }
  munmap(outside_, bytes_);
  munmap(inside_, bytes_);
}

// An unused page follows each block.
SimulatedMemory::Block* SimulatedMemory::New(size_t bytes, bool pinned) {
  const size_t whole = Rounded(std::max(bytes, size_t{1})) + kPage;
  Block block;
  block.bytes = bytes;
  block.pinned = pinned;
  if (pinned) {
    block.start = Map(whole, PROT_READ | PROT_WRITE);
    if (block.start == nullptr) return nullptr;
    mprotect(block.start + whole - kPage, kPage, PROT_NONE);
  } else {
    if (whole > bytes_ - taken_) return nullptr;
    block.start = outside_ + taken_;
    taken_ += whole;
  }
  std::memset(pinned ? block.start : Inside(block.start), 0xff, bytes);
  return &(blocks_[block.start] = block);
}

SimulatedMemory::Block* SimulatedMemory::Register(char* memory, size_t bytes) {
  const auto overlaps = [&](const auto& known) {
    const Block& block = known.second;
    return !block.deleted && block.start < memory + bytes && memory < block.start + block.bytes;
  };
  if (std::any_of(blocks_.begin(), blocks_.end(), overlaps)) return nullptr;
  Block block;
  block.start = memory;
  block.bytes = bytes;
  block.pinned = block.registered = true;
  return &(blocks_[memory] = block);
}

void SimulatedMemory::Delete(Block* block) {
  if (block->registered) {
    blocks_.erase(block->start);
    return;
  }
  block->deleted = true;
  const size_t whole = Rounded(std::max(block->bytes, size_t{1}));
  if (block->pinned) mprotect(block->start, whole, PROT_NONE);
  madvise(block->pinned ? block->start : Inside(block->start), whole, MADV_DONTNEED);
}

SimulatedMemory::Block* SimulatedMemory::Find(const void* address, size_t bytes, std::string* why) {
  const char* const start = static_cast<const char*>(address);
  auto next = blocks_.upper_bound(start);
  Block* const block = next == blocks_.begin() ? nullptr : &std::prev(next)->second;
  if (block == nullptr || start > block->start + block->bytes) {
    *why = "neither memory of this GPU nor pinned";
    return nullptr;
  }
  const char* const kind = block->pinned ? "pinned memory" : "memory of this GPU";
  const size_t offset = static_cast<size_t>(start - block->start);
  *why = std::string(kind) + " of " + std::to_string(block->bytes) + " bytes";
  if (block->deleted) {
    *why += " that was deleted";
  } else if (bytes > block->bytes - offset) {
    *why += ", of which byte " + std::to_string(offset) + " is the first";
  } else {
    return block;
  }
  return nullptr;
}

char* SimulatedMemory::Inside(const void* address) const {
  char* const at = static_cast<char*>(const_cast<void*>(address));
  return at >= outside_ && at < outside_ + bytes_ ? inside_ + (at - outside_) : at;
}

int SimulatedMemory::Left(bool pinned) const {
  return static_cast<int>(std::count_if(blocks_.begin(), blocks_.end(), [pinned](const auto& it) {
    return it.second.pinned == pinned && !it.second.deleted && it.second.uses == 0;
  }));
}

}  // namespace tfmpi
