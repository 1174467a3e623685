#include "tensorflow_patches/core/memory/block_cache.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <utility>

namespace tfmpi {
namespace {

constexpr size_t kPage = BlockCache::kAlignment;  // a large page
// A smaller block would waste too much of its last large page.
constexpr size_t kMinLarge = 2 * kPage;
constexpr size_t kSmallUnit = size_t{64} << 10;  // smaller blocks are rounded up to this

size_t RoundedTo(size_t unit, size_t bytes) { return (bytes + unit - 1) / unit * unit; }
size_t Rounded(size_t bytes) { return RoundedTo(bytes >= kMinLarge ? kPage : kSmallUnit, bytes); }

// How many mappings all blocks may use, of the 65,530 that the kernel allows a process.
constexpr size_t kMaxMappings = size_t{1} << 14;

// Aligned to kPage. `bytes` must be a multiple of the system's page size. Null if there is no
// memory.
char* Map(size_t bytes) {
  void* const all =
      mmap(nullptr, bytes + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (all == MAP_FAILED) return nullptr;
  char* const start = static_cast<char*>(all);
  const size_t before =
      RoundedTo(kPage, reinterpret_cast<uintptr_t>(all)) - reinterpret_cast<uintptr_t>(all);
  if (before != 0) munmap(start, before);
  if (before != kPage) munmap(start + before + bytes, kPage - before);
  const bool large = bytes >= kMinLarge;
  madvise(start + before, bytes, large ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);  // only advice
  return start + before;
}

}  // namespace

void* BlockCache::Allocate(size_t bytes, TimePoint now) {
  if (bytes < kMinBytes || bytes > SIZE_MAX / 2) return nullptr;
  const size_t rounded = Rounded(bytes);
  std::lock_guard<std::mutex> lock(mutex_);
  while (!waiting_.empty() && now - waiting_.front().since > kLongestWait) Unmap(waiting_.begin());
  char* block = TakeWaiting(rounded);
  if (block == nullptr) {
    // For what exceeds this limit, waiting blocks lose pages to the new block or are unmapped.
    size_t max_total = std::max(max_in_use_, bytes_in_use_ + rounded);
    max_total += std::min(max_total / 2, max_spare_);
    const size_t new_bytes = std::min(rounded, max_total - bytes_in_use_ - bytes_waiting_);
    Block created = {Map(rounded), rounded, {}, {}};
    if (created.start == nullptr) return nullptr;
    if (rounded >= kMinLarge &&
        !MoveWaitingPages(RoundedTo(kPage, rounded - new_bytes), &created)) {
      munmap(created.start, rounded);
      created = {Map(rounded), rounded, {}, {}};
      if (created.start == nullptr) return nullptr;
    }
    const size_t moved =
        std::accumulate(created.mappings.begin(), created.mappings.end(), size_t{0});
    if (moved < rounded) created.mappings.push_back(rounded - moved);
    while (bytes_in_use_ + rounded + bytes_waiting_ > max_total) Unmap(waiting_.begin());
    mappings_ += created.mappings.size();
    block = created.start;
    in_use_[block] = std::move(created);
  }
  bytes_in_use_ += in_use_[block].bytes;
  max_in_use_ = std::max(max_in_use_, bytes_in_use_);
  return block;
}

// Returns the smallest waiting block that fits and is not much larger, or null; of several equal
// ones the one freed last, which may still be in the processor's cache.
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

// Moves `bytes` of large pages, or as many as there are, from waiting blocks to the beginning of a
// newly mapped block. Starts with the block freed last, which a repeating step needs last. False if
// the kernel refuses or there are too many mappings; the pages moved so far are then lost.
bool BlockCache::MoveWaitingPages(size_t bytes, Block* to) {
  size_t moved = 0;
  for (auto after = waiting_.end(); after != waiting_.begin() && moved < bytes;) {
    const auto from = std::prev(after);
    while (from->bytes != 0 && from->bytes % kPage == 0 && moved < bytes) {
      size_t& mapping = from->mappings.back();
      const size_t part = std::min(mapping, bytes - moved);
      if (mappings_ + to->mappings.size() > kMaxMappings ||
          mremap(from->start + from->bytes - part, part, part, MREMAP_MAYMOVE | MREMAP_FIXED,
                 to->start + moved) == MAP_FAILED) {
        return false;
      }
      to->mappings.push_back(part);
      moved += part;
      bytes_waiting_ -= part;
      from->bytes -= part;
      mapping -= part;
      if (mapping == 0) {
        from->mappings.pop_back();
        --mappings_;
      }
    }
    after = from->bytes == 0 ? waiting_.erase(from) : from;
  }
  return true;
}

bool BlockCache::Free(void* block, TimePoint now) {
  if (reinterpret_cast<uintptr_t>(block) % kPage != 0) return false;  // most are malloc's
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
