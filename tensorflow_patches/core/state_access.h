// A variable and its slots, which an update reads and writes where they lie.
//
// What `average` is to a gradient, the states are to the variable: all have as many elements as the
// gradient, of its type, and an element of each depends on no other element. The submitter of a
// request implements it and owns it, until `done` has run. All calls on the communication thread:
// Begin once, then Update, for each element once at most, in no particular order, then End, unless
// the operation has failed.

#ifndef TFMPI_CORE_STATE_ACCESS_H_
#define TFMPI_CORE_STATE_ACCESS_H_

#include <cstddef>
#include <vector>

namespace tfmpi {

class StateAccess {
 public:
  virtual ~StateAccess() = default;

  // Where each state's elements lie once they are updated, whoever does that: Update writes them
  // there, and the engine those that other ranks have updated. Null for what has no memory: the
  // others' are dropped, and get no value of use.
  virtual std::vector<char*> Begin() = 0;
  // Elements [begin, end) of all states, by the average of their gradients, which lies at a
  // multiple of 64 bytes; so does `begin` in the states.
  virtual void Update(size_t begin, size_t end, const void* average) = 0;
  // All elements are there. Before the next operation begins, which may be of the same states.
  virtual void End() = 0;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_STATE_ACCESS_H_
