#include "tensorflow_patches/core/transport/transport.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "tensorflow_patches/core/memory/leaked_memory.h"

namespace tfmpi {

namespace {

// Calls `put` with this rank's part of the result, to fill it. Leaks the memory if the operation
// fails, since MPI may still write there.
template <typename Put>
Status AllgatherInto(Transport* transport, const std::vector<size_t>& bytes, const Put& put,
                     TimePoint deadline, std::string* all) {
  auto memory =
      std::make_unique<std::string>(std::accumulate(bytes.begin(), bytes.end(), size_t{0}), '\0');
  const auto rank = transport->topology().rank;
  char* const own =
      memory->data() + std::accumulate(bytes.begin(), bytes.begin() + rank, size_t{0});
  put(own);
  const Status status = transport->Allgather(own, memory->data(), bytes, deadline);
  if (status.ok()) {
    *all = std::move(*memory);
  } else {
    KeepUntilExit(std::move(memory));
  }
  return status;
}

}  // namespace

Status Transport::SparseAllgather(const std::vector<int64_t>& rows, size_t row_bytes,
                                  RowAccess* access, TimePoint deadline) {
  const std::vector<size_t> bytes = BytesOfRows(rows, row_bytes);
  const int rank = topology().rank;
  const auto put = [&](char* own) {
    if (rows[rank] != 0) access->Put(0, rows[rank], own);
  };
  std::string all;
  TFMPI_RETURN_IF_NOT_OK(AllgatherInto(this, bytes, put, deadline, &all));
  const char* from = all.data();
  for (int r = 0; r < topology().size; from += bytes[r], ++r) {
    if (r != rank && rows[r] != 0) access->Take(r, 0, rows[r], from);
  }
  return Status();
}

std::vector<size_t> BytesOfRows(const std::vector<int64_t>& rows, size_t row_bytes) {
  std::vector<size_t> bytes;
  for (const int64_t n : rows) bytes.push_back(static_cast<size_t>(n) * row_bytes);
  return bytes;
}

Status AllgatherStrings(Transport* transport, const std::string& own, TimePoint deadline,
                        std::vector<std::string>* all) {
  const auto size = static_cast<size_t>(transport->topology().size);
  const size_t length = own.size();
  std::vector<size_t> sizes(size);
  TFMPI_RETURN_IF_NOT_OK(transport->Allgather(&length, sizes.data(),
                                              std::vector<size_t>(size, sizeof length), deadline));
  std::string joined;
  const auto put = [&](char* place) { own.copy(place, own.size()); };
  TFMPI_RETURN_IF_NOT_OK(AllgatherInto(transport, sizes, put, deadline, &joined));
  size_t at = 0;
  for (const size_t bytes : sizes) {
    all->push_back(joined.substr(at, bytes));
    at += bytes;
  }
  return Status();
}

}  // namespace tfmpi
