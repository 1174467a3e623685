// Rows of a table too large for the caches, each asked for some rows ahead of its turn.

#ifndef TFMPI_CORE_REDUCTION_TABLE_ROWS_H_
#define TFMPI_CORE_REDUCTION_TABLE_ROWS_H_

#include <cstdint>

namespace tfmpi {

// Adds `values`, `rows` rows of `elements`, times `factor`, to the rows `indices` of `table`. An
// index that is in no table is left out. T: float or double; Index: int32_t or int64_t.
template <typename T, typename Index>
void AddRows(T* table, int64_t table_rows, const Index* indices, int64_t rows, const T* values,
             int64_t elements, T factor);

}  // namespace tfmpi

#endif  // TFMPI_CORE_REDUCTION_TABLE_ROWS_H_
