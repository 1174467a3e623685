// The sparse gradients of a compiled step's average.

#ifndef TFMPI_GLUE_XLA_COMPILED_SLICES_H_
#define TFMPI_GLUE_XLA_COMPILED_SLICES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow_patches/core/reduction/sparse_rows.h"
#include "tensorflow_patches/glue/runtime/request_group.h"
#include "tensorflow_patches/glue/xla/operands.h"

namespace tfmpi {

// One sparse gradient, from the call until Write has returned. XLA's buffers outlive it.
struct SparseGradient {
  std::string name;
  RowFormat format;
  std::unique_ptr<GatheredRows> gathered;
  std::unique_ptr<char[]> rows;  // the gathered rows in wire form; null: they are in `values`
  char* values = nullptr;        // of the result, with memory for `capacity` rows
  void* indices = nullptr;
  int64_t* count = nullptr;  // of the result: the number of rows
  bool int32_indices = false;
  size_t capacity = 0;

  // See GatheredRows::Allocate.
  char* AllocateRows(size_t all);
  // Sums the gathered rows and writes the results. Fails if they exceed the capacity.
  absl::Status Write() const;
  template <typename Index>
  void WriteIndices(const std::vector<int64_t>& from) const;
};

// Adds the requests of all sparse gradients, which are in host memory. Fills `sparse`, which has an
// element for each of `names` and outlives the requests.
absl::Status AddAll(const std::vector<std::string>& names, const Operands& operands, float weight,
                    Duplicates duplicates, std::vector<SparseGradient>* sparse,
                    RequestGroup* group);
// Writes all results. Call it when all requests have ended with ok.
absl::Status WriteAll(const std::vector<SparseGradient>& sparse);

}  // namespace tfmpi

#endif  // TFMPI_GLUE_XLA_COMPILED_SLICES_H_
