// What this rank has done of what all ranks have agreed on, in its order, and the results: for
// ranks that had not come so far when another died.
//
// A unit is one response, or what stands in a response list beside its responses. All ranks do the
// same units in the same order, so a number says how far a rank has come. An operation to which
// every rank contributes tells that all have done what was before it, which is then forgotten.
// Communication thread.

#ifndef TFMPI_CORE_RECOVERY_HISTORY_H_
#define TFMPI_CORE_RECOVERY_HISTORY_H_

#include <cstdint>
#include <deque>
#include <string>
#include <utility>

#include "tensorflow_patches/core/agreement/message.h"
#include "tensorflow_patches/core/memory/line_memory.h"

namespace tfmpi {

// A result as it has travelled, alike on all ranks.
struct Result {
  LineMemory memory;
  size_t bytes = 0;
};

struct Unit {
  ResponseList what;  // one response, or none
  Result result;
};

class History {
 public:
  // So many units have been done. The numbers of those that are still known are (first, done].
  uint64_t done() const { return done_; }
  uint64_t first() const { return done_ - units_.size(); }
  // Of all results that are known.
  size_t bytes() const { return bytes_; }

  // `meets_all`: every rank has done what was before it.
  void Add(Unit unit, bool meets_all);
  // All ranks have done all of this.
  void Forget();
  // A group begins: nothing has been done in it.
  void Restart();
  // Memory for a result; from units that were forgotten, where it fits.
  Result Take(size_t bytes);

  // The units after `number`, which is not before first(), in bytes; and from bytes.
  std::string EncodeAfter(uint64_t number) const;
  static bool Decode(const std::string& bytes, std::deque<Unit>* units);

 private:
  uint64_t done_ = 0;
  size_t bytes_ = 0;
  std::deque<Unit> units_;
  Result spare_;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_RECOVERY_HISTORY_H_
