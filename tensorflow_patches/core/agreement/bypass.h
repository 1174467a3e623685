// This rank's votes: how it agrees with the others on a step that repeats, without a message.
//
// Position after position, the ranks of a node either commit what all of them expect (predictor.h)
// by voting for it (consensus.h), or do what a response list of the coordinator says. A rank votes,
// or tells the coordinator; what it has told it must not vote for.
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
  // The transport outlives it. `takes_part`: a rank that does not still rejects, for the others'
  // sake.
  ResponseBypass(Transport* transport, bool takes_part);

  // A group of other ranks begins; only where nobody votes.
  void Restart() { position_ = 0; }

  // Agreements that had responses, so far: the same on all ranks at the same one.
  uint64_t position() const { return position_; }
  // For what is expected at position(); it has not been seen to be decided.
  bool voted() const { return voted_; }
  TimePoint voted_at() const { return voted_at_; }
  // The names that are expected, ascending; empty if nothing is.
  const std::vector<NameId>& expected() const { return predictor_.names(); }

  // Where ranks say what they have, and all of them have said this: whether it is what is expected,
  // and nothing else.
  bool IsExpected(const ReadyList& ready_list) const {
    return takes_part_ && ready_list.gathers.empty() && predictor_.gathers().empty() &&
           ready_list.wait_state.empty() && ready_list.ready == expected() &&
           predictor_.Fits(ready_list);
  }
  // What is to be done then.
  const ResponseList& expected_list() const { return predictor_.response_list(); }

  Outcome Look() const { return consensus_.Look(position_); }
  Outcome Watch() const { return consensus_.Watch(position_); }

  // Whether a rank that has this to announce may vote: all that is expected is in it.
  bool Fits(const ReadyList& ready_list) const;
  // With what fits. Committed: by this vote, the last; its peers have been woken.
  Outcome Vote(const ReadyList& ready_list, TimePoint now);
  // Rejects what is open; its voters have been woken. Committed: it was, before.
  Outcome End();

  // All have voted. Passes the position; what was expected there is struck from the ready list,
  // in which there may be more. What is to be done, until OnResponseList is called.
  const ResponseList& Commit(ReadyList* ready_list);
  // Passes the position by a response list of the coordinator, which has responses.
  void OnResponseList(const ResponseList& response_list, const NameTable& table);

 private:
  friend class Inspector;  // tests/core/simulation

  Transport* const transport_;
  const bool takes_part_;
  uint64_t position_ = 0;
  Consensus consensus_;
  ResponsePredictor predictor_;
  bool voted_ = false;
  TimePoint voted_at_;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_AGREEMENT_BYPASS_H_
