#include "tensorflow_patches/core/transport/transport.h"

#include <algorithm>
#include <numeric>

namespace tfmpi {

// Uses temporary memory of its own.
Status Transport::SparseAllgather(const std::vector<int64_t>& rows, size_t row_bytes,
                                  RowAccess* access, TimePoint deadline) {
  std::vector<size_t> bytes;
  for (const int64_t n : rows) bytes.push_back(static_cast<size_t>(n) * row_bytes);
  std::vector<char> all(std::accumulate(bytes.begin(), bytes.end(), size_t{0}));
  const int rank = topology().rank;
  char* const own = all.data() + std::accumulate(bytes.begin(), bytes.begin() + rank, size_t{0});
  if (rows[rank] != 0) access->Put(0, rows[rank], own);
  const Status status = Allgather(own, all.data(), bytes, deadline);
  if (!status.ok()) return status;
  const char* from = all.data();
  for (int r = 0; r < topology().size; from += bytes[r], ++r) {
    if (r != rank && rows[r] != 0) access->Take(r, 0, rows[r], from);
  }
  return status;
}

}  // namespace tfmpi
