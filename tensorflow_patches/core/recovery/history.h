// The agreed operations that this rank has executed, in order, with their results: for ranks that
// had not executed them yet when another rank died.
//
// A unit is one response, or the other entries of a response list. All ranks execute the same units
// in the same order, so a number says how far a rank is. When an allreduce with data has completed
// here, every rank has started it (which other operations do not prove), and so has executed all
// units before it, which are then deleted. Communication thread only.

#ifndef TFMPI_CORE_RECOVERY_HISTORY_H_
#define TFMPI_CORE_RECOVERY_HISTORY_H_

#include <cstdint>
#include <deque>
#include <string>

#include "tensorflow_patches/core/agreement/message.h"
#include "tensorflow_patches/core/memory/line_memory.h"

namespace tfmpi {

// A result in wire form, the same on all ranks.
struct Result {
  LineMemory memory;
  size_t bytes = 0;
};

struct Unit {
  ResponseList what;  // one response alone, or all other entries of a list
  Result result;
};

class History {
 public:
  // The number of units executed, and of those deleted; the others are in the history.
  uint64_t done() const { return done_; }
  uint64_t deleted() const { return done_ - units_.size(); }
  // The size of all results in the history.
  size_t bytes() const { return bytes_; }

  // `proves_all_started`: whether the unit's completion proves that every rank has started it, and
  // so has executed all units before it.
  void Add(Unit unit, bool proves_all_started);
  // Deletes all units, which every rank must have executed.
  void Forget();
  // For a new group, in which nothing has been executed yet: deletes all units and counts anew.
  void Restart();
  // Memory for a result: that of a deleted unit, if it fits.
  Result NewResult(size_t bytes);

  // The units after `number`, which must not be less than deleted(), as bytes; and the reverse,
  // which returns false if the bytes are invalid.
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
