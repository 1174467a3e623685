#include "tensorflow_patches/glue/xla/compiled_slices.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tensorflow_patches/core/cpu/reduce.h"
#include "tensorflow_patches/glue/kernels/sparse_average.h"

namespace tfmpi {

namespace ffi = xla::ffi;

// XLA's scatters skip indices outside the table, so the unused capacity, whose index is -1, changes
// nothing, even where rows are read, modified and written back.
template <typename Index>
void SparseGradient::WriteIndices(const std::vector<int64_t>& from) const {
  Index* const to = static_cast<Index*>(indices);
  std::copy(from.begin(), from.end(), to);
  std::fill(to + from.size(), to + capacity, Index{-1});
}

char* SparseGradient::AllocateRows(size_t all) {
  if (all <= capacity && IsWireForm(format.dtype) && values != nullptr) return values;
  rows.reset(new char[all * format.wire_bytes() + 1]);
  return rows.get();
}

absl::Status SparseGradient::Write() const {
  gathered->Sum();
  const std::vector<int64_t>& found = gathered->indices();
  if (found.size() > capacity) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the ranks have ", found.size(), " rows of the sparse gradient of '", name,
                     "', but this rank's compiled step has room for ", capacity,
                     ", because the other ranks have many more rows than this one. Give the ranks "
                     "batches of about the same size, or drop jit_compile=True",
                     gathered->own().every_row() ? "" : "; or set TF_MPI_SPARSE=dense"));
  }
  if (rows != nullptr) {
    Unpack(format.dtype, rows.get(), values, found.size() * format.elements, 1);
  }
  *count = static_cast<int64_t>(found.size());
  int32_indices ? WriteIndices<int32_t>(found) : WriteIndices<int64_t>(found);
  return absl::OkStatus();
}

namespace {

template <typename Index>
std::vector<int64_t> ReadIndices(const Operand& indices, size_t rows) {
  const auto* const from = indices.as<Index>();
  return std::vector<int64_t>(from, from + rows);
}

// Adds the request of the sparse gradient whose values are number `index` of the operands and of
// the results, and whose indices are the next one.
absl::Status AddSparse(const std::string& name, const Operands& operands, size_t index,
                       int64_t* count, float weight, Duplicates duplicates, SparseGradient* sparse,
                       RequestGroup* group) {
  const Operand& values = operands.args[index];
  const Operand& indices = operands.args[index + 1];
  const Operand& values_result = operands.rets[index];
  const Operand& indices_result = operands.rets[index + 1];
  const auto dims = values.dims;
  sparse->name = name;
  sparse->int32_indices = indices.type == ffi::DataType::S32;
  if (!ToCoreType(values.type, &sparse->format.dtype) ||
      (!sparse->int32_indices && indices.type != ffi::DataType::S64) || dims.size() == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the sparse gradient of '", name, "' has a dtype that cannot be averaged"));
  }
  const Shape row(dims.begin() + 1, dims.end());
  sparse->format.elements = static_cast<size_t>(NumElements(row));
  sparse->capacity = static_cast<size_t>(values_result.dims[0]);
  sparse->values = values_result.as<char>();
  sparse->indices = indices_result.data;
  sparse->count = count;
  const auto rows = static_cast<size_t>(dims[0]);
  OwnRows own(sparse->format,
              sparse->int32_indices ? ReadIndices<int32_t>(indices, rows)
                                    : ReadIndices<int64_t>(indices, rows),
              values.data, weight, duplicates);
  sparse->gathered =
      std::make_unique<GatheredRows>(sparse->format, std::move(own), GetEngine()->topology().rank,
                                     [sparse](size_t all) { return sparse->AllocateRows(all); });
  group->Add(GatherRequest(name, sparse->format, row, /*limit=*/-1, sparse->gathered.get()));
  return absl::OkStatus();
}

}  // namespace

absl::Status AddAll(const std::vector<std::string>& names, const Operands& operands, float weight,
                    Duplicates duplicates, std::vector<SparseGradient>* sparse,
                    RequestGroup* group) {
  for (size_t i = 0; i < sparse->size(); ++i) {
    TF_RETURN_IF_ERROR(AddSparse(names[i], operands, 2 * i, operands.counts()->as<int64_t>() + i,
                                 weight, duplicates, &(*sparse)[i], group));
  }
  return absl::OkStatus();
}

absl::Status WriteAll(const std::vector<SparseGradient>& sparse) {
  for (const SparseGradient& one : sparse) TF_RETURN_IF_ERROR(one.Write());
  return absl::OkStatus();
}

}  // namespace tfmpi
