#include "tensorflow_patches/glue/extras/kept_memory.h"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>

#include "tensorflow_patches/core/memory/block_cache.h"

namespace tfmpi {
namespace {

// Null: off. Never destroyed: tensors are freed while the process exits.
std::atomic<BlockCache*> g_blocks{nullptr};

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

void* Allocate(size_t size, std::align_val_t alignment) {
  const size_t align = static_cast<size_t>(alignment);
  BlockCache* const blocks = g_blocks.load(std::memory_order_acquire);
  if (blocks == nullptr) return Stock<Malloc, kMalloc>()(size, alignment);
  void* block = nullptr;
  if (size >= BlockCache::kLeastBytes && align <= BlockCache::kAlignment) {
    block = blocks->Allocate(size, Clock::now());
  }
  return block != nullptr ? block : Stock<Malloc, kMalloc>()(size, alignment);
}

// Every tensor passes here when it is freed: large ones are told apart by their address.
bool Take(void* memory) {
  BlockCache* const blocks = g_blocks.load(std::memory_order_acquire);
  if (blocks == nullptr || memory == nullptr) return false;
  return reinterpret_cast<uintptr_t>(memory) % BlockCache::kAlignment == 0 &&
         blocks->Free(memory, Clock::now());
}

}  // namespace

void KeepTensorMemory() {
  g_blocks = new BlockCache;
  pthread_atfork([] { g_blocks.load()->BeforeFork(); }, [] { g_blocks.load()->AfterFork(); },
                 [] { g_blocks.load()->AfterFork(); });
}

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
