// An extra: divides the row updates of one sparse optimizer op among ranks that all share one node.
//
// Every rank has the same averaged rows, and would update the same rows of the variable and its
// slots in the same way. Instead each row is updated by one rank, its owner, and the others copy
// the result: an update reads and computes, a copy only writes. The bits are the same. A row has
// the same owner in every step, and copies are made on the communication thread, in the same order
// on all ranks, so concurrent updates are not lost.
//
// A kernel creates one object per execution. If Divide returns true, it runs the stock kernel on
// PositionsOf this rank, then calls AddTo and submits the group. When the group has ended, it calls
// Finish and runs the stock kernel on PositionsOf each of absent(). The engine calls Begin, Put and
// Take on the communication thread.

#ifndef TFMPI_GLUE_EXTRAS_DIVIDED_UPDATE_H_
#define TFMPI_GLUE_EXTRAS_DIVIDED_UPDATE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow_patches/core/base/row_access.h"
#include "tensorflow_patches/glue/runtime/request_group.h"

namespace tfmpi {

class DividedUpdate : public RowAccess {
 public:
  explicit DividedUpdate(const Topology& topology) : topology_(topology) {}

  // Returns false if every rank must update all rows; the object is then not used further.
  // `indices` [n]: int32 or int64. Ranks with the same indices get the same result.
  bool Divide(tensorflow::OpKernelContext* context, const tensorflow::Tensor& indices);
  // The positions in `indices` of the rows that `rank` owns.
  const std::vector<int64_t>& PositionsOf(int rank) const { return positions_[rank]; }

  // Call it after the stock kernel has updated this rank's rows. The object must outlive `group`.
  void AddTo(RequestGroup* group, tensorflow::OpKernelContext* context, const std::string& name);
  // The ranks that did not take part: their script has ended, or they had no gradients.
  const std::vector<int>& absent() const { return absent_; }

  // Call it when the group has ended, with any result. Not ok if the ranks' rows differed.
  absl::Status Finish();

  void Begin(const std::vector<int64_t>& rows, int contributors) override;
  void Put(int64_t begin, int64_t end, char* to) override;
  void Take(int rank, int64_t begin, int64_t end, const char* from) override;

 private:
  // One state input: the variable, or a slot. `value` shares its memory.
  struct State {
    tensorflow::Tensor value;
    char* rows;
    size_t row_bytes;
  };

  // The row of the index at `position`.
  char* Row(const State& state, int64_t position) const {
    return state.rows + static_cast<size_t>(indices_[position]) * state.row_bytes;
  }
  void Prefetch(int64_t position) const;

  void NoteDifference(int rank, const std::string& what);
  static bool ReadStates(tensorflow::OpKernelContext* context, std::vector<State>* states);

  const Topology topology_;
  std::string name_;
  size_t row_bytes_ = 0;  // on the wire: a row of each state, or the fingerprint if that is longer
  uint64_t fingerprint_ = 0;
  std::vector<int64_t> indices_;
  std::vector<std::vector<int64_t>> positions_;  // by rank
  std::vector<State> states_;                    // while the request is pending
  std::vector<int> absent_;
  absl::Status status_;
};

}  // namespace tfmpi

#endif  // TFMPI_GLUE_EXTRAS_DIVIDED_UPDATE_H_
