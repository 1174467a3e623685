#include "tensorflow_patches/core/transport/transport.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "tensorflow_patches/core/memory/leaked_memory.h"

namespace tfmpi {

Status Transport::SparseAllgather(const std::vector<int64_t>& rows, size_t row_bytes,
                                  RowAccess* access, TimePoint deadline) {
  const std::vector<size_t> bytes = BytesOfRows(rows, row_bytes);
  std::vector<char> all(std::accumulate(bytes.begin(), bytes.end(), size_t{0}));
  const int rank = topology().rank;
  char* const own = all.data() + std::accumulate(bytes.begin(), bytes.begin() + rank, size_t{0});
  if (rows[rank] != 0) access->Put(0, rows[rank], own);
  TFMPI_RETURN_IF_NOT_OK(Allgather(own, all.data(), bytes, deadline));
  const char* from = all.data();
  for (int r = 0; r < topology().size; from += bytes[r], ++r) {
    if (r != rank && rows[r] != 0) access->Take(r, 0, rows[r], from);
  }
  return Status();
}

namespace {

// Gathers into new memory, and leaks it if the operation fails, since MPI may still write there.
Status AllgatherInto(Transport* transport, const void* own, const std::vector<size_t>& bytes,
                     TimePoint deadline, std::string* all) {
  auto memory =
      std::make_unique<std::string>(std::accumulate(bytes.begin(), bytes.end(), size_t{0}), '\0');
  const auto rank = transport->topology().rank;
  char* const place =
      memory->data() + std::accumulate(bytes.begin(), bytes.begin() + rank, size_t{0});
  std::copy_n(static_cast<const char*>(own), bytes[rank], place);
  const Status status = transport->Allgather(place, memory->data(), bytes, deadline);
  if (status.ok()) {
    *all = std::move(*memory);
  } else {
    KeepUntilExit(std::move(memory));
  }
  return status;
}

}  // namespace

std::vector<size_t> BytesOfRows(const std::vector<int64_t>& rows, size_t row_bytes) {
  std::vector<size_t> bytes;
  for (const int64_t n : rows) bytes.push_back(static_cast<size_t>(n) * row_bytes);
  return bytes;
}

Status AllgatherStrings(Transport* transport, const std::string& own, TimePoint deadline,
                        std::vector<std::string>* all) {
  const auto size = static_cast<size_t>(transport->topology().size);
  const uint64_t length = own.size();
  std::string lengths, joined;
  TFMPI_RETURN_IF_NOT_OK(AllgatherInto(transport, &length, std::vector<size_t>(size, sizeof length),
                                       deadline, &lengths));
  std::vector<size_t> sizes(size);
  std::memcpy(sizes.data(), lengths.data(), lengths.size());
  TFMPI_RETURN_IF_NOT_OK(AllgatherInto(transport, own.data(), sizes, deadline, &joined));
  size_t at = 0;
  for (const size_t bytes : sizes) {
    all->push_back(joined.substr(at, bytes));
    at += bytes;
  }
  return Status();
}

}  // namespace tfmpi
