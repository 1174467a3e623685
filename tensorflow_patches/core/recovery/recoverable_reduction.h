// Carries out one agreed response so that it can be done again, or finished for a rank that died
// halfway: until the result is whole nothing is written that a request owns, and then it is kept.
//
// In the place of Fusion where ranks go on without those that die. It costs a copy of each tensor.
// Communication thread.

#ifndef TFMPI_CORE_RECOVERY_RECOVERABLE_REDUCTION_H_
#define TFMPI_CORE_RECOVERY_RECOVERABLE_REDUCTION_H_

#include <vector>

#include "tensorflow_patches/core/agreement/message.h"
#include "tensorflow_patches/core/recovery/history.h"
#include "tensorflow_patches/core/request/fusion_entry.h"
#include "tensorflow_patches/core/transport/transport.h"

namespace tfmpi {

class RecoverableReduction {
 public:
  // It outlives it.
  explicit RecoverableReduction(Transport* transport) : transport_(transport) {}

  // Of what has been done in this group.
  History* history() { return &history_; }

  // From now on an average is divided by the sum of the ranks' weights, which were meant for a
  // group of other ranks. Called on all ranks at the same unit.
  void DivideByWeights() { divides_by_weights_ = true; }

  // Into the memory of the requests of this rank, and into the history.
  Status Execute(const Response& response, const std::vector<FusionEntry>& entries,
                 TimePoint deadline);
  // After each unit: all ranks have the same history, so all do this at the same one.
  Status TrimHistory(TimePoint deadline);
  // Into the memory of the requests of this rank, which is, or was, `rank` in the group that has
  // made it. `collected_here`: by Execute.
  static Status Deliver(const Response& response, const std::vector<FusionEntry>& entries, int rank,
                        const Result& result, bool collected_here);

 private:
  // `meets_all`: every rank must have begun it.
  Status Collect(const Response& response, const std::vector<FusionEntry>& entries,
                 TimePoint deadline, Result* result, bool* meets_all);
  Status Allreduce(const std::vector<FusionEntry>& entries, int contributors, TimePoint deadline,
                   Result* result);
  Status Gather(const FusionEntry& entry, const Response& response, TimePoint deadline,
                Result* result);
  Status Broadcast(const FusionEntry& entry, TimePoint deadline, Result* result);
  // By entry, what its data is multiplied by.
  Status Factors(const std::vector<FusionEntry>& entries, int contributors, TimePoint deadline,
                 std::vector<double>* factors);

  Transport* const transport_;
  History history_;
  bool divides_by_weights_ = false;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_RECOVERY_RECOVERABLE_REDUCTION_H_
