// An extra: reads the rows of a table before a stock kernel updates them.
//
// The rows that only other ranks' samples use are in no cache here, and a stock kernel waits for
// memory row by row. So it gets blocks of rows, and all rows of a block are read before they are
// updated. (The processor would drop most of so many prefetches.)

#ifndef TFMPI_GLUE_EXTRAS_ROWS_AHEAD_H_
#define TFMPI_GLUE_EXTRAS_ROWS_AHEAD_H_

#include <cstdint>

#include "tensorflow/core/framework/tensor.h"

namespace tfmpi {

inline constexpr int64_t kLineBytes = 64;  // of the processor's caches

// Rows per block; with this size each slice of values and indices is as well aligned as the whole.
inline constexpr int64_t kBlockOfRows = 128;

// Reads the rows `indices`, int32 or int64, of `table`, which must not be empty; skips indices that
// are out of range. Does nothing if the rows have more bytes than kMaxTouchedBytes.
void TouchRows(const tensorflow::Tensor& table, const tensorflow::Tensor& indices);

// Whether all `indices`, int32 or int64, are in [0, table_rows).
bool AreRows(const tensorflow::Tensor& indices, int64_t table_rows);

}  // namespace tfmpi

#endif  // TFMPI_GLUE_EXTRAS_ROWS_AHEAD_H_
