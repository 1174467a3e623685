#include "tensorflow_patches/glue/tensor_memory.h"

#include <dlfcn.h>
#include <malloc.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>

#include "tensorflow_patches/core/block_cache.h"
#include "tensorflow_patches/core/small_blocks.h"

namespace tfmpi {
namespace {

// Null: off. Never destroyed: tensors are freed while the process exits.
std::atomic<BlockCache*> g_blocks{nullptr};
MemoryBudget g_small_budget(size_t{64} << 20);  // of all threads; parameters.md tells it

using Malloc = void* (*)(size_t, std::align_val_t);
using Free = void (*)(void*);

constexpr char kMalloc[] = "_ZN3tsl4port13AlignedMallocEmSt11align_val_t";
constexpr char kFree[] = "_ZN3tsl4port11AlignedFreeEPv";

// The definition in libtensorflow_framework, which ours hides. No static with a guard: TensorFlow's
// static constructors call it.
template <typename Function, const char* kName>
Function Stock() {
  static std::atomic<Function> found{nullptr};
  Function function = found.load(std::memory_order_relaxed);
  if (function == nullptr) {
    function = reinterpret_cast<Function>(dlsym(RTLD_NEXT, kName));
    found.store(function, std::memory_order_relaxed);
  }
  return function;
}

void StockFree(void* memory) { Stock<Free, kFree>()(memory); }

// Pointer and flag have no destructor: other destructors of a thread that ends may free tensors
// after this one.
thread_local SmallBlocks* t_small = nullptr;
thread_local bool t_ended = false;

struct Ending {
  ~Ending() {
    t_ended = true;
    delete t_small;
    t_small = nullptr;
  }
};

// This thread's; null while it ends.
SmallBlocks* Small() {
  if (t_small == nullptr && !t_ended) {
    static thread_local Ending ending;
    t_small = new SmallBlocks(&g_small_budget, StockFree);
  }
  return t_small;
}

void* Allocate(size_t size, std::align_val_t alignment) {
  const size_t align = static_cast<size_t>(alignment);
  BlockCache* const blocks = g_blocks.load(std::memory_order_acquire);
  if (blocks == nullptr) return Stock<Malloc, kMalloc>()(size, alignment);
  void* block = nullptr;
  if (size >= BlockCache::kLeastBytes && align <= BlockCache::kAlignment) {
    block = blocks->Allocate(size, Clock::now());
  } else if (size <= SmallBlocks::kMostBytes && align <= SmallBlocks::kUnit) {
    size = SmallBlocks::Rounded(size);  // so that it will serve whoever asks for as many units
    if (SmallBlocks* const small = Small()) block = small->Take(size);
  }
  return block != nullptr ? block : Stock<Malloc, kMalloc>()(size, alignment);
}

// Every tensor passes here when it is freed: large ones are told apart by their address.
bool Take(void* memory) {
  BlockCache* const blocks = g_blocks.load(std::memory_order_acquire);
  if (blocks == nullptr || memory == nullptr) return false;
  if (reinterpret_cast<uintptr_t>(memory) % BlockCache::kAlignment == 0 &&
      blocks->Free(memory, Clock::now())) {
    return true;
  }
  SmallBlocks* const small = Small();
  return small != nullptr && small->Keep(memory, malloc_usable_size(memory));
}

}  // namespace

void KeepTensorMemory() { g_blocks = new BlockCache; }

}  // namespace tfmpi

namespace tsl {
namespace port {

__attribute__((visibility("default"))) void* AlignedMalloc(size_t size,
                                                           std::align_val_t alignment) {
  return tfmpi::Allocate(size, alignment);
}

__attribute__((visibility("default"))) void AlignedFree(void* memory) {
  if (!tfmpi::Take(memory)) tfmpi::StockFree(memory);
}

// The stock one does not look at the size either.
__attribute__((visibility("default"))) void AlignedSizedFree(void* memory, size_t /*size*/,
                                                             std::align_val_t /*alignment*/) {
  if (!tfmpi::Take(memory)) tfmpi::StockFree(memory);
}

}  // namespace port
}  // namespace tsl
