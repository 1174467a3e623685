#include "tensorflow_patches/core/transport/transport.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "tensorflow_patches/core/line_memory.h"

namespace tfmpi {

// By way of memory of its own.
Status Transport::Exchange(const std::vector<int64_t>& rows, size_t row_bytes, RowAccess* access,
                           TimePoint deadline) {
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

Status Transport::Update(const void* gradient, const Reduction& reduction, int states,
                         StateAccess* access, TimePoint deadline) {
  (void)states;
  // An average is read where it lies in the cache.
  constexpr size_t kPieceBytes = size_t{256} << 10;
  const size_t element = SizeOf(reduction.type);
  const size_t most = std::min(reduction.count, kPieceBytes / element);
  const LineMemory average = NewLineMemory(most * element);
  access->Begin();
  for (size_t start = 0; start < reduction.count; start += most) {
    Reduction piece = reduction;
    piece.count = std::min(most, reduction.count - start);
    const void* in = average.get();
    if (gradient != nullptr) {
      in = static_cast<const char*>(gradient) + start * element;
    } else {
      std::memset(average.get(), 0, piece.count * element);
    }
    const Status status = Allreduce(in, average.get(), piece, deadline);
    if (!status.ok()) return status;
    access->Update(start, start + piece.count, average.get());
  }
  return Status();
}

}  // namespace tfmpi
