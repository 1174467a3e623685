#include "tensorflow_patches/core/reduction/table_rows.h"

namespace tfmpi {
namespace {

// The rows of a large table are in no cache. They are prefetched this many rows ahead: first into
// the second-level cache, which can wait for more lines at a time, then from there into the first.
constexpr int64_t kRowsToSecondCache = 32;
constexpr int64_t kRowsToFirstCache = 8;
constexpr int64_t kCacheLine = 64;

// Half a cache line, unaligned; on a target with narrower registers the compiler uses two of them.
// Needed because GCC vectorizes no loop of unknown length at -O2.
template <typename T>
struct VectorOf {
  typedef T Type [[gnu::vector_size(kCacheLine / 2), gnu::aligned(alignof(T)), gnu::may_alias]];
};

template <typename T, typename Index>
[[gnu::always_inline]] inline void AddRowsOf(T* table, int64_t table_rows, const Index* indices,
                                             int64_t rows, const T* values, int64_t elements,
                                             T factor) {
  using Vector = typename VectorOf<T>::Type;
  constexpr int64_t kVector = sizeof(Vector) / sizeof(T);
  const auto row = [=](int64_t i) -> T* {
    const auto index = static_cast<int64_t>(indices[i]);
    return index >= 0 && index < table_rows ? table + index * elements : nullptr;
  };
  for (int64_t i = 0; i < rows; ++i) {
    T* const into = row(i);
    if (into == nullptr) continue;
    const auto ahead = [=](int64_t by) {
      const T* const found = i + by < rows ? row(i + by) : nullptr;
      return found == nullptr ? into : found;
    };
    const T* const to_second_cache = ahead(kRowsToSecondCache);
    const T* const to_first_cache = ahead(kRowsToFirstCache);
    const auto prefetch = [=](int64_t k) {
      __builtin_prefetch(to_second_cache + k, 0, 2);
      __builtin_prefetch(to_first_cache + k, 1);
    };
    const T* const value = values + i * elements;
    int64_t k = 0;
    // One line is prefetched while another is added: if a whole row is requested at once, the
    // processor runs out of buffers for outstanding lines and stalls.
    for (; k + 2 * kVector <= elements; k += 2 * kVector) {
      prefetch(k);
      for (int64_t half = k; half < k + 2 * kVector; half += kVector) {
        *reinterpret_cast<Vector*>(into + half) +=
            factor * *reinterpret_cast<const Vector*>(value + half);
      }
    }
    if (k < elements) prefetch(k);
    for (; k < elements; ++k) into[k] += factor * value[k];
  }
}

#ifdef __x86_64__
// Half as many instructions, so the processor works on twice as many rows at a time. Gives the same
// bits, because AVX2 includes no FMA.
template <typename T, typename Index>
__attribute__((target("avx2"))) void AddRowsWide(T* table, int64_t table_rows, const Index* indices,
                                                 int64_t rows, const T* values, int64_t elements,
                                                 T factor) {
  AddRowsOf(table, table_rows, indices, rows, values, elements, factor);
}
#endif

}  // namespace

template <typename T, typename Index>
void AddRows(T* table, int64_t table_rows, const Index* indices, int64_t rows, const T* values,
             int64_t elements, T factor) {
#ifdef __x86_64__
  static const bool wide = __builtin_cpu_supports("avx2");
  if (wide) {
    return AddRowsWide(table, table_rows, indices, rows, values, elements, factor);
  }
#endif
  AddRowsOf(table, table_rows, indices, rows, values, elements, factor);
}

template void AddRows(float*, int64_t, const int32_t*, int64_t, const float*, int64_t, float);
template void AddRows(float*, int64_t, const int64_t*, int64_t, const float*, int64_t, float);
template void AddRows(double*, int64_t, const int32_t*, int64_t, const double*, int64_t, double);
template void AddRows(double*, int64_t, const int64_t*, int64_t, const double*, int64_t, double);

}  // namespace tfmpi
