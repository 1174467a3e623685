// Access to the rows of a sparse allgather in the submitter's own memory.
//
// The submitter of a request implements this and keeps it until `done` has run. All calls come on
// the communication thread: Begin once, then Put for this rank's rows and Take for those of each
// other rank, chunk by chunk, in row order. With TF_MPI_FAULT=shrink (core/recovery) Prepare comes
// before Begin. After a death Weight comes before Prepare, all of these calls may be repeated, and
// Take may be called for this rank's own rows, too.

#ifndef TFMPI_CORE_BASE_ROW_ACCESS_H_
#define TFMPI_CORE_BASE_ROW_ACCESS_H_

#include <cstdint>
#include <vector>

namespace tfmpi {

class RowAccess {
 public:
  virtual ~RowAccess() = default;

  // The weight of this rank's rows in a sum over ranks.
  virtual double Weight() const { return 1; }
  // `rank`: this rank's index into the `rows` of Begin. `factor`: for its rows, besides the weight.
  virtual void Prepare(int /*rank*/, double /*factor*/) {}

  // `rows`: the number of rows of each rank; 0 if it does not take part. `contributors`: how many
  // ranks take part.
  virtual void Begin(const std::vector<int64_t>& rows, int contributors) = 0;
  // Writes this rank's rows [begin, end) to `to`, one after another.
  virtual void Put(int64_t begin, int64_t end, char* to) = 0;
  // `from`: the rows [begin, end) of another rank, as its Put with the same bounds wrote them.
  virtual void Take(int rank, int64_t begin, int64_t end, const char* from) = 0;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_BASE_ROW_ACCESS_H_
