// Updates rows of a table that is too large for the caches; each is prefetched some rows ahead.

#ifndef TFMPI_CORE_REDUCTION_TABLE_ROWS_H_
#define TFMPI_CORE_REDUCTION_TABLE_ROWS_H_

#include <cstdint>

namespace tfmpi {

// For each i < rows: adds row i of `values`, multiplied by `factor`, to row indices[i] of `table`.
// A row has `elements` elements. Indices outside the table are skipped. T: float or double; Index:
// int32_t or int64_t.
template <typename T, typename Index>
void AddRows(T* table, int64_t table_rows, const Index* indices, int64_t rows, const T* values,
             int64_t elements, T factor);

}  // namespace tfmpi

#endif  // TFMPI_CORE_REDUCTION_TABLE_ROWS_H_
