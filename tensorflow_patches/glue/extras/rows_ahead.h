// An extra: the rows of a table that a stock kernel is about to update, read ahead.
//
// Those of other ranks lie in no cache, and a stock kernel waits for memory row by row. So it gets
// blocks of rows, each of which is read at once before it is updated. (Of as many prefetches most
// are dropped.)

#ifndef TFMPI_GLUE_EXTRAS_ROWS_AHEAD_H_
#define TFMPI_GLUE_EXTRAS_ROWS_AHEAD_H_

#include <cstdint>

#include "tensorflow/core/framework/tensor.h"

namespace tfmpi {

// Rows of a block; so each slice of values and indices is as well aligned as the whole.
inline constexpr int64_t kBlockOfRows = 128;

// Reads the rows `indices` of `table`, which has some, unless they are wide; passes over an index
// that is out of range. `indices`: int32 or int64.
void TouchRows(const tensorflow::Tensor& table, const tensorflow::Tensor& indices);

// Whether all of `indices`, int32 or int64, are rows of a table with so many.
bool AreRows(const tensorflow::Tensor& indices, int64_t table_rows);

}  // namespace tfmpi

#endif  // TFMPI_GLUE_EXTRAS_ROWS_AHEAD_H_
