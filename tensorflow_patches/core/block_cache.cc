#include "tensorflow_patches/core/block_cache.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>

namespace tfmpi {
namespace {

constexpr size_t kPage = BlockCache::kAlignment;  // a large one

size_t Rounded(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

// `bytes` are whole pages; null if there are none.
char* Map(size_t bytes) {
  void* const all =
      mmap(nullptr, bytes + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (all == MAP_FAILED) return nullptr;
  char* const start = static_cast<char*>(all);
  const size_t before =
      Rounded(reinterpret_cast<uintptr_t>(all)) - reinterpret_cast<uintptr_t>(all);
  if (before != 0) munmap(start, before);
  if (before != kPage) munmap(start + before + bytes, kPage - before);
  madvise(start + before, bytes, MADV_HUGEPAGE);  // a wish
  return start + before;
}

}  // namespace

void* BlockCache::Allocate(size_t bytes, TimePoint now) {
  if (bytes < kLeastBytes || bytes > SIZE_MAX / 2) return nullptr;
  const size_t whole = Rounded(bytes);
  std::lock_guard<std::mutex> lock(mutex_);
  while (!waiting_.empty() && now - waiting_.front().since > kLongestWait) Unmap(waiting_.begin());
  char* block = TakeWaiting(whole);
  if (block == nullptr) {
    const size_t most = std::max(most_in_use_, bytes_in_use_ + whole);
    while (!waiting_.empty() && bytes_in_use_ + whole + bytes_waiting_ > most) {
      Unmap(waiting_.begin());
    }
    block = Map(whole);
    if (block == nullptr) return nullptr;
    in_use_[block] = whole;
  }
  bytes_in_use_ += in_use_[block];
  most_in_use_ = std::max(most_in_use_, bytes_in_use_);
  return block;
}

// The smallest that fits and is not much larger; of equals the one that was freed last, which may
// still be in a cache.
char* BlockCache::TakeWaiting(size_t bytes) {
  auto best = waiting_.end();
  for (auto it = waiting_.begin(); it != waiting_.end(); ++it) {
    const bool fits = it->bytes >= bytes && it->bytes - bytes <= bytes / 8;
    if (fits && (best == waiting_.end() || it->bytes <= best->bytes)) best = it;
  }
  if (best == waiting_.end()) return nullptr;
  char* const block = best->block;
  in_use_[block] = best->bytes;
  bytes_waiting_ -= best->bytes;
  waiting_.erase(best);
  return block;
}

bool BlockCache::Free(void* block, TimePoint now) {
  if (reinterpret_cast<uintptr_t>(block) % kPage != 0) return false;  // most are not of this cache
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = in_use_.find(block);
  if (it == in_use_.end()) return false;
  bytes_in_use_ -= it->second;
  bytes_waiting_ += it->second;
  waiting_.push_back({static_cast<char*>(block), it->second, now});
  in_use_.erase(it);
  return true;
}

void BlockCache::Unmap(std::list<Waiting>::iterator waiting) {
  munmap(waiting->block, waiting->bytes);
  bytes_waiting_ -= waiting->bytes;
  waiting_.erase(waiting);
}

size_t BlockCache::bytes_in_use() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return bytes_in_use_;
}

size_t BlockCache::bytes_waiting() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return bytes_waiting_;
}

}  // namespace tfmpi
