#include "tensorflow_patches/core/small_blocks.h"

#include <cstdint>
#include <new>

namespace tfmpi {

bool MemoryBudget::Claim(size_t bytes) {
  size_t left = left_.load(std::memory_order_relaxed);
  while (left >= bytes) {
    if (left_.compare_exchange_weak(left, left - bytes, std::memory_order_relaxed)) return true;
  }
  return false;
}

SmallBlocks::~SmallBlocks() {
  ReleaseAll();
  budget_->Return(claims_ * kClaim);
}

void* SmallBlocks::Take(size_t bytes) {
  const size_t units = Rounded(bytes) / kUnit;
  if (units >= by_units_.size()) return nullptr;
  Waiting* const first = by_units_[units];
  if (first == nullptr) return nullptr;
  by_units_[units] = first->next;
  bytes_waiting_ -= units * kUnit;
  return first;
}

bool SmallBlocks::Keep(void* block, size_t capacity) {
  const size_t units = capacity / kUnit;
  if (units == 0 || units >= by_units_.size()) return false;
  if (reinterpret_cast<uintptr_t>(block) % kUnit != 0) return false;
  const size_t bytes = units * kUnit;
  if (bytes_waiting_ + bytes > claims_ * kClaim && !MakeRoom(bytes)) return false;
  by_units_[units] = new (block) Waiting{by_units_[units]};
  bytes_waiting_ += bytes;
  return true;
}

bool SmallBlocks::MakeRoom(size_t bytes) {
  if (claims_ < kMostClaims && budget_->Claim(kClaim)) {
    ++claims_;
  } else {
    ReleaseAll();
  }
  return bytes <= claims_ * kClaim;
}

void SmallBlocks::ReleaseAll() {
  for (Waiting*& list : by_units_) {
    while (list != nullptr) {
      Waiting* const first = list;
      list = first->next;
      release_(first);
    }
  }
  bytes_waiting_ = 0;
}

}  // namespace tfmpi
