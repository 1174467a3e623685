#include "tensorflow_patches/glue/tensor_memory.h"

#include <dlfcn.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>

#include "tensorflow_patches/core/block_cache.h"

namespace tfmpi {
namespace {

// Null: off. Never destroyed: tensors are freed while the process exits.
std::atomic<BlockCache*> g_blocks{nullptr};

using Malloc = void* (*)(size_t, std::align_val_t);
using Free = void (*)(void*);
using SizedFree = void (*)(void*, size_t, std::align_val_t);

constexpr char kMalloc[] = "_ZN3tsl4port13AlignedMallocEmSt11align_val_t";
constexpr char kFree[] = "_ZN3tsl4port11AlignedFreeEPv";
constexpr char kSizedFree[] = "_ZN3tsl4port16AlignedSizedFreeEPvmSt11align_val_t";

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

// Every tensor passes here when it is freed: most are told apart by their address.
bool Take(void* block) {
  if (reinterpret_cast<uintptr_t>(block) % BlockCache::kAlignment != 0) return false;
  BlockCache* const blocks = g_blocks.load(std::memory_order_acquire);
  return blocks != nullptr && blocks->Free(block, Clock::now());
}

}  // namespace

void KeepTensorMemory() { g_blocks = new BlockCache; }

}  // namespace tfmpi

namespace tsl {
namespace port {

__attribute__((visibility("default"))) void* AlignedMalloc(size_t size,
                                                           std::align_val_t alignment) {
  using tfmpi::BlockCache;
  BlockCache* const blocks = tfmpi::g_blocks.load(std::memory_order_acquire);
  if (blocks != nullptr && size >= BlockCache::kLeastBytes &&
      static_cast<size_t>(alignment) <= BlockCache::kAlignment) {
    void* const block = blocks->Allocate(size, tfmpi::Clock::now());
    if (block != nullptr) return block;
  }
  return tfmpi::Stock<tfmpi::Malloc, tfmpi::kMalloc>()(size, alignment);
}

__attribute__((visibility("default"))) void AlignedFree(void* memory) {
  if (!tfmpi::Take(memory)) tfmpi::Stock<tfmpi::Free, tfmpi::kFree>()(memory);
}

__attribute__((visibility("default"))) void AlignedSizedFree(void* memory, size_t size,
                                                             std::align_val_t alignment) {
  if (tfmpi::Take(memory)) return;
  tfmpi::Stock<tfmpi::SizedFree, tfmpi::kSizedFree>()(memory, size, alignment);
}

}  // namespace port
}  // namespace tsl
