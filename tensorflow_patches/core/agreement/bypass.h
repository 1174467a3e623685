// This rank's votes: how it agrees with the others on a repeated step without a message.
//
// At each position the ranks, if all are on one node, either vote (consensus.h) for what all of
// them expect (predictor.h) and commit it, or execute a response list of the coordinator. A rank
// must not vote for anything that it has announced to the coordinator.
//
// Used by the communication thread.

#ifndef TFMPI_CORE_AGREEMENT_BYPASS_H_
#define TFMPI_CORE_AGREEMENT_BYPASS_H_

#include <cstdint>
#include <vector>

#include "tensorflow_patches/core/agreement/consensus.h"
#include "tensorflow_patches/core/agreement/message.h"
#include "tensorflow_patches/core/agreement/name_table.h"
#include "tensorflow_patches/core/agreement/predictor.h"
#include "tensorflow_patches/core/transport/transport.h"

namespace tfmpi {

class ResponseBypass {
 public:
  // The transport outlives it. A rank that does not take part still rejects votes, so that the
  // others do not wait.
  ResponseBypass(Transport* transport, bool takes_part);

  // For a new group. Only without `takes_part`: the word and the predictor keep their state.
  void Restart() { position_ = 0; }

  // The number of agreements with responses so far: the same on all ranks at the same agreement.
  uint64_t position() const { return position_; }
  // Whether this rank has voted at position() and has not yet seen the outcome.
  bool voted() const { return voted_; }
  TimePoint voted_at() const { return voted_at_; }
  // The numbers of the names that the predictor expects, ascending; empty if it expects nothing.
  const std::vector<NameId>& expected() const { return predictor_.names(); }

  // For ranks that agree by messages, when all of them have announced `ready_list`: whether it is
  // exactly what the predictor expects, and contains no gathers.
  bool IsExpected(const ReadyList& ready_list) const {
    return takes_part_ && ready_list.gathers.empty() && predictor_.gathers().empty() &&
           ready_list.wait_state.empty() && ready_list.ready == expected() &&
           predictor_.Fits(ready_list);
  }
  // The response list to execute in that case.
  const ResponseList& expected_list() const { return predictor_.response_list(); }

  // The outcome of the vote at position(). Look reads it once; Watch polls it for a short time.
  Outcome Look() const { return consensus_.Look(position_); }
  Outcome Watch() const { return consensus_.Watch(position_); }

  // Whether a rank with these announcements may vote: they must include everything expected, but
  // unlike in IsExpected may contain more names with numbers.
  bool Fits(const ReadyList& ready_list) const;
  // Requires Fits. kCommitted: this was the last vote, and the peers have been woken; call Commit.
  Outcome Vote(const ReadyList& ready_list, TimePoint now);
  // Rejects the vote at position(), even if this rank has not voted, and wakes the voters.
  // kCommitted: the vote was already committed; call Commit.
  Outcome End();

  // After all ranks have voted: advances the position and removes the expected names from the ready
  // list. Returns the list to execute, valid until the next agreement.
  const ResponseList& Commit(ReadyList* ready_list);
  // For a response list of the coordinator that has responses: advances the position.
  void OnResponseList(const ResponseList& response_list, const NameTable& table);

 private:
  friend class Inspector;  // tests/core/simulation

  // Where `rank` writes its numbers of rows for the next commit. A rank that has not yet read those
  // for the last one finds them in the other half.
  std::atomic<int64_t>* RowsOf(int rank) const {
    return transport_->SharedNumbers(rank) + commits_ % 2 * ResponsePredictor::kMaxGathers;
  }

  Transport* const transport_;
  const bool takes_part_;
  uint64_t position_ = 0;
  uint64_t commits_ = 0;  // the same on all ranks at the same agreement
  Consensus consensus_;
  ResponsePredictor predictor_;
  bool voted_ = false;
  TimePoint voted_at_;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_AGREEMENT_BYPASS_H_
