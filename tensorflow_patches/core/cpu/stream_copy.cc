#include "tensorflow_patches/core/cpu/stream_copy.h"

#include <cstdint>
#include <cstring>

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace tfmpi {

#ifdef __x86_64__
namespace {

constexpr size_t kLine = 64;

void StreamLines(char* to, const char* from, size_t bytes) {
  for (size_t i = 0; i < bytes; i += sizeof(__m128i)) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
  }
}

// Faster for rows at scattered addresses: TLB misses overlap only among the stores in flight, and
// wider stores cover more rows.
__attribute__((target("avx2"))) void StreamLinesWide(char* to, const char* from, size_t bytes) {
  for (size_t i = 0; i < bytes; i += sizeof(__m256i)) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i),
                        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i)));
  }
}

}  // namespace

void StreamCopy(void* to, const void* from, size_t bytes) {
  static const bool wide = __builtin_cpu_supports("avx2");
  char* const out = static_cast<char*>(to);
  const char* const in = static_cast<const char*>(from);
  const size_t lines = reinterpret_cast<uintptr_t>(to) % kLine == 0 ? bytes / kLine * kLine : 0;
  wide ? StreamLinesWide(out, in, lines) : StreamLines(out, in, lines);
  if (lines != bytes) std::memcpy(out + lines, in + lines, bytes - lines);
}

void EndStreams() { _mm_sfence(); }
#else
void StreamCopy(void* to, const void* from, size_t bytes) {
  if (bytes != 0) std::memcpy(to, from, bytes);
}
void EndStreams() {}
#endif

}  // namespace tfmpi
