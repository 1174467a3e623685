#include "tensorflow_patches/glue/extras/rows_ahead.h"

#include <algorithm>

#include "tensorflow_patches/glue/runtime/runtime.h"

namespace tfmpi {

using tensorflow::Tensor;

namespace {

// A larger block is not touched: its rows are wide, so the processor prefetches by itself, and more
// data would evict what was read first.
constexpr int64_t kMaxTouchedBytes = 256 << 10;

template <typename Index>
void Touch(const Tensor& table, const Tensor& indices) {
  const int64_t rows = table.dim_size(0);
  const int64_t row_bytes = static_cast<int64_t>(table.TotalBytes()) / rows;
  if (row_bytes * indices.NumElements() > kMaxTouchedBytes) return;
  const char* const data = static_cast<const char*>(Data(table));
  const Index* const index = indices.flat<Index>().data();
  for (int64_t i = 0; i < indices.NumElements(); ++i) {
    if (index[i] < 0 || index[i] >= rows) continue;
    for (int64_t byte = 0; byte < row_bytes; byte += kLineBytes) {
      static_cast<void>(*static_cast<const volatile char*>(data + index[i] * row_bytes + byte));
    }
  }
}

template <typename Index>
bool AllInRange(const Tensor& indices, int64_t rows) {
  const Index* const index = indices.flat<Index>().data();
  return std::all_of(index, index + indices.NumElements(),
                     [rows](Index i) { return i >= 0 && i < rows; });
}

}  // namespace

void TouchRows(const Tensor& table, const Tensor& indices) {
  if (indices.dtype() == tensorflow::DT_INT32) return Touch<int32_t>(table, indices);
  Touch<int64_t>(table, indices);
}

bool AreRows(const Tensor& indices, int64_t table_rows) {
  return indices.dtype() == tensorflow::DT_INT32 ? AllInRange<int32_t>(indices, table_rows)
                                                 : AllInRange<int64_t>(indices, table_rows);
}

}  // namespace tfmpi
