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

// The alignment is a std::align_val_t, before TensorFlow 2.21 an int, in the same register.
using Malloc = void* (*)(size_t, size_t);
using Free = void (*)(void*);

constexpr char kMalloc[] = "_ZN3tsl4port13AlignedMallocEmSt11align_val_t";
constexpr char kOlderMalloc[] = "_ZN3tsl4port13AlignedMallocEmi";
constexpr char kFree[] = "_ZN3tsl4port11AlignedFreeEPv";

// The definition in libtensorflow_framework, which ours hides. Looked up by the first call, which
// TensorFlow's static constructors make; threads that call it at the same time find the same.
template <typename Function, const char* kName, const char* kOlderName = kName>
Function Stock() {
  static std::atomic<Function> found{nullptr};
  Function function = found.load(std::memory_order_relaxed);
  if (function == nullptr) {
    void* symbol = dlsym(RTLD_NEXT, kName);
    if (symbol == nullptr) symbol = dlsym(RTLD_NEXT, kOlderName);
    function = reinterpret_cast<Function>(symbol);
    found.store(function, std::memory_order_relaxed);
  }
  return function;
}

void* StockMalloc(size_t size, size_t alignment) {
  return Stock<Malloc, kMalloc, kOlderMalloc>()(size, alignment);
}
void StockFree(void* memory) { Stock<Free, kFree>()(memory); }

void* Allocate(size_t size, size_t alignment) {
  BlockCache* const blocks = g_blocks.load(std::memory_order_acquire);
  if (blocks == nullptr) return StockMalloc(size, alignment);
  void* block = nullptr;
  if (size >= BlockCache::kMinBytes && alignment <= BlockCache::kAlignment) {
    block = blocks->Allocate(size, Clock::now());
  }
  return block != nullptr ? block : StockMalloc(size, alignment);
}

// Returns false for memory that is not from the cache. Runs whenever a tensor is freed, so it
// checks the alignment first.
bool FreeInCache(void* memory) {
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

// Declared by symbol, because the headers of each TensorFlow declare only its own signatures. The
// `older` functions are for TensorFlow before 2.21; since then they are inline functions that call
// the new ones.
#define TFMPI_INTERPOSED(symbol) __asm__(symbol) __attribute__((visibility("default"), used))

extern "C" {

void* tfmpi_aligned_malloc(size_t size, std::align_val_t alignment)
    TFMPI_INTERPOSED("_ZN3tsl4port13AlignedMallocEmSt11align_val_t");
void* tfmpi_aligned_malloc(size_t size, std::align_val_t alignment) {
  return tfmpi::Allocate(size, static_cast<size_t>(alignment));
}

void* tfmpi_older_aligned_malloc(size_t size, int alignment)
    TFMPI_INTERPOSED("_ZN3tsl4port13AlignedMallocEmi");
void* tfmpi_older_aligned_malloc(size_t size, int alignment) {
  return tfmpi::Allocate(size, static_cast<size_t>(alignment));
}

void tfmpi_aligned_free(void* memory) TFMPI_INTERPOSED("_ZN3tsl4port11AlignedFreeEPv");
void tfmpi_aligned_free(void* memory) {
  if (!tfmpi::FreeInCache(memory)) tfmpi::StockFree(memory);
}

// The stock functions ignore the size, too.
void tfmpi_aligned_sized_free(void* memory, size_t size, std::align_val_t alignment)
    TFMPI_INTERPOSED("_ZN3tsl4port16AlignedSizedFreeEPvmSt11align_val_t");
void tfmpi_aligned_sized_free(void* memory, size_t /*size*/, std::align_val_t /*alignment*/) {
  tfmpi_aligned_free(memory);
}

void tfmpi_older_aligned_sized_free(void* memory, size_t alignment, size_t size)
    TFMPI_INTERPOSED("_ZN3tsl4port16AlignedSizedFreeEPvmm");
void tfmpi_older_aligned_sized_free(void* memory, size_t /*alignment*/, size_t /*size*/) {
  tfmpi_aligned_free(memory);
}

}  // extern "C"
