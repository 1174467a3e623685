// Rows of a table too large for the caches, each asked for some rows ahead of its turn.

#ifndef TFMPI_CORE_TABLE_ROWS_H_
#define TFMPI_CORE_TABLE_ROWS_H_

#include <cstdint>

namespace tfmpi {

// Adds `values`, `rows` rows of `elements`, times `factor`, to the rows `indices` of `table`. An
// index that is in no table is left out. T: float or double; Index: int32_t or int64_t.
template <typename T, typename Index>
void AddRows(T* table, int64_t table_rows, const Index* indices, int64_t rows, const T* values,
             int64_t elements, T factor);

// Copies the rows `indices` of `table` to `to`. An index outside of the table, which has rows,
// counts as the next one inside. Index: int32_t or int64_t.
template <typename Index>
void CopyRows(const char* table, int64_t table_rows, int64_t row_bytes, const Index* indices,
              int64_t rows, char* to);

}  // namespace tfmpi

#endif  // TFMPI_CORE_TABLE_ROWS_H_
