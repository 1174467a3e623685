// Rows that a sparse allgather reads and writes where they lie, whatever memory that is.
//
// The submitter of a request implements it and owns it, until `done` has run. All calls on the
// communication thread, in this order: Begin once, then Put and Take, in chunks, in the order of
// the rows. Where ranks go on without those that die (core/recovery) all of it may come again, from
// Prepare on, and this rank's own rows may be taken, too.

#ifndef TFMPI_CORE_BASE_ROW_ACCESS_H_
#define TFMPI_CORE_BASE_ROW_ACCESS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tfmpi {

class RowAccess {
 public:
  virtual ~RowAccess() = default;

  // How much this rank's rows count in a sum over ranks.
  virtual double Weight() const { return 1; }
  // This rank's place in `rows`, and what its rows are multiplied by besides its weight.
  virtual void Prepare(int rank, double factor) {
    (void)rank;
    (void)factor;
  }

  // `rows` by rank; of a rank that has joined 0. `contributors`: the ranks that have not.
  virtual void Begin(const std::vector<int64_t>& rows, int contributors) = 0;
  // Writes this rank's rows [begin, end) to `to`, one after another.
  virtual void Put(int64_t begin, int64_t end, char* to) = 0;
  // The rows [begin, end) of another rank lie at `from`, as its Put with the same bounds wrote
  // them.
  virtual void Take(int rank, int64_t begin, int64_t end, const char* from) = 0;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_BASE_ROW_ACCESS_H_
