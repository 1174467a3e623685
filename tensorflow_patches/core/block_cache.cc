#include "tensorflow_patches/core/block_cache.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <utility>

namespace tfmpi {
namespace {

constexpr size_t kPage = BlockCache::kAlignment;  // a large one

size_t Rounded(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

// A block may lie on so many mappings in all, of the 65,530 that the kernel gives a process.
constexpr size_t kMostMappings = size_t{1} << 14;

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
    const size_t fresh = std::min(whole, most - bytes_in_use_ - bytes_waiting_);
    Block made;
    if (!MapFromWaiting(whole, whole - fresh, &made)) {
      while (bytes_in_use_ + whole + bytes_waiting_ > most) Unmap(waiting_.begin());
      made = {Map(whole), whole, {whole}, {}};
      if (made.start == nullptr) return nullptr;
    }
    mappings_ += made.mappings.size();
    block = made.start;
    in_use_[block] = std::move(made);
  }
  bytes_in_use_ += in_use_[block].bytes;
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
  char* const block = best->start;
  bytes_waiting_ -= best->bytes;
  in_use_[block] = std::move(*best);
  waiting_.erase(best);
  return block;
}

// A block whose first `moved` bytes are pages of those that wait. False, with some of these lost,
// if the kernel refuses.
bool BlockCache::MapFromWaiting(size_t bytes, size_t moved, Block* made) {
  *made = {Map(bytes), bytes, {}, {}};
  if (made->start == nullptr) return false;
  size_t done = 0;
  while (done < moved) {
    Block& from = waiting_.front();
    size_t& mapping = from.mappings.back();
    const size_t part = std::min(mapping, moved - done);
    if (mappings_ + made->mappings.size() > kMostMappings ||
        mremap(from.start + from.bytes - part, part, part, MREMAP_MAYMOVE | MREMAP_FIXED,
               made->start + done) == MAP_FAILED) {
      munmap(made->start, bytes);
      return false;
    }
    made->mappings.push_back(part);
    done += part;
    bytes_waiting_ -= part;
    from.bytes -= part;
    mapping -= part;
    if (mapping == 0) {
      from.mappings.pop_back();
      --mappings_;
    }
    if (from.bytes == 0) waiting_.pop_front();
  }
  if (done < bytes) made->mappings.push_back(bytes - done);
  return true;
}

bool BlockCache::Free(void* block, TimePoint now) {
  if (reinterpret_cast<uintptr_t>(block) % kPage != 0) return false;  // most are not of this cache
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = in_use_.find(block);
  if (it == in_use_.end()) return false;
  bytes_in_use_ -= it->second.bytes;
  bytes_waiting_ += it->second.bytes;
  it->second.since = now;
  waiting_.push_back(std::move(it->second));
  in_use_.erase(it);
  return true;
}

void BlockCache::Unmap(std::list<Block>::iterator waiting) {
  munmap(waiting->start, waiting->bytes);
  bytes_waiting_ -= waiting->bytes;
  mappings_ -= waiting->mappings.size();
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
