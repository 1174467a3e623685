// Executes one agreed response so that, if a rank dies halfway, the others can repeat it or get its
// result from a rank that has completed it: a request's memory is written only when the result is
// complete, and the result is kept.
//
// Replaces Fusion if the ranks continue after deaths (TF_MPI_FAULT=shrink). It costs a copy of each
// tensor. Communication thread only.

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
  // `transport` outlives this object.
  explicit RecoverableReduction(Transport* transport) : transport_(transport) {}

  History* history() { return &history_; }

  // From now on divides an average of gradients by the sum of the ranks' weights, which need not be
  // the number of ranks: the weights may have been computed for a larger group. Call it on all
  // ranks before the same unit.
  void DivideByWeights() { divides_by_weights_ = true; }

  // Writes the result to the memory of this rank's requests, and to the history.
  Status Execute(const Response& response, const std::vector<FusionEntry>& entries,
                 TimePoint deadline);
  // Call it after each response. If the history is too long, waits for all ranks and deletes it.
  // All ranks have the same history, so all do this after the same response.
  Status TrimHistory(TimePoint deadline);
  // Writes a result to the memory of this rank's requests. `rank`: of this rank in the group that
  // computed the result. `collected_here`: whether this rank's Execute computed it.
  static Status Deliver(const Response& response, const std::vector<FusionEntry>& entries, int rank,
                        const Result& result, bool collected_here);

 private:
  // Computes the result. `proves_all_started`: see History::Add.
  Status Collect(const Response& response, const std::vector<FusionEntry>& entries,
                 TimePoint deadline, Result* result, bool* proves_all_started);
  Status Allreduce(const std::vector<FusionEntry>& entries, int contributors, TimePoint deadline,
                   Result* result);
  Status Gather(const FusionEntry& entry, const Response& response, TimePoint deadline,
                Result* result);
  Status Broadcast(const FusionEntry& entry, TimePoint deadline, Result* result);
  // `factors`: by entry, the factor for its data besides its weight.
  Status Factors(const std::vector<FusionEntry>& entries, int contributors, TimePoint deadline,
                 std::vector<double>* factors);

  Transport* const transport_;
  History history_;
  bool divides_by_weights_ = false;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_RECOVERY_RECOVERABLE_REDUCTION_H_
