// How all ranks of a node agree on what each of them expects next, without a message.
//
// Agreements have positions, counted alike on all ranks. At a position each rank may vote for what
// is expected there; it is committed when all have voted, and rejected when a rank rejects it
// before that. Both are final, and the same for all. A rank that has not voted may be sure that
// nothing is committed.
//
// Who calls: the communication thread. The word is shared by the ranks; it is zero at first.

#ifndef TFMPI_CORE_AGREEMENT_CONSENSUS_H_
#define TFMPI_CORE_AGREEMENT_CONSENSUS_H_

#include <atomic>
#include <cstdint>

#include "tensorflow_patches/core/base/clock.h"

namespace tfmpi {

enum class Outcome { kOpen, kCommitted, kRejected };

class Consensus {
 public:
  // Null: every vote is rejected.
  Consensus(std::atomic<uint64_t>* word, int ranks)
      : word_(word), ranks_(static_cast<uint64_t>(ranks)) {}

  // False: every vote is rejected.
  bool takes_votes() const { return word_ != nullptr; }
  // A rank votes at a position at most once, and passes a position only when its vote there has
  // been decided and what was committed has been done by all.
  Outcome Vote(uint64_t position) {
    return Change(position, [](uint64_t votes) { return votes + 1; });
  }
  // `rejected_votes`: this call rejected what some rank had voted for, which may sleep.
  Outcome Reject(uint64_t position, bool* rejected_votes) {
    uint64_t voters = 0;
    const Outcome outcome = Change(position, [&voters](uint64_t votes) {
      voters = votes;
      return kRejection;
    });
    *rejected_votes = outcome == Outcome::kRejected && voters != 0;
    return outcome;
  }
  Outcome Look(uint64_t position) const {
    return word_ == nullptr ? Outcome::kRejected
                            : Judge(position, word_->load(std::memory_order_seq_cst));
  }
  // For some tenths of a microsecond, unless it is decided before.
  Outcome Watch(uint64_t position) const {
    for (int look = 0; look < kLooks; ++look) {
      const Outcome outcome = Look(position);
      if (outcome != Outcome::kOpen) return outcome;
      Clock::Relax();
    }
    return Outcome::kOpen;
  }

 private:
  static constexpr int kLooks = 16;
  // The word: a position and the votes there.
  static constexpr int kVoteBits = 20;
  static constexpr uint64_t kRejection = (uint64_t{1} << kVoteBits) - 1;

  // A word of a later position: this one was rejected, since nothing can be committed without this
  // rank.
  Outcome Judge(uint64_t position, uint64_t word) const {
    const uint64_t at = word >> kVoteBits, votes = word & kRejection;
    if (at != position) return at < position ? Outcome::kOpen : Outcome::kRejected;
    if (votes == kRejection) return Outcome::kRejected;
    return votes == ranks_ ? Outcome::kCommitted : Outcome::kOpen;
  }

  template <typename Next>
  Outcome Change(uint64_t position, const Next& next) {
    if (word_ == nullptr) return Outcome::kRejected;
    uint64_t word = word_->load(std::memory_order_seq_cst);
    while (true) {
      const Outcome outcome = Judge(position, word);
      if (outcome != Outcome::kOpen) return outcome;
      const uint64_t votes = word >> kVoteBits == position ? word & kRejection : 0;
      const uint64_t changed = position << kVoteBits | next(votes);
      if (word_->compare_exchange_weak(word, changed, std::memory_order_seq_cst)) {
        return Judge(position, changed);
      }
    }
  }

  std::atomic<uint64_t>* const word_;
  const uint64_t ranks_;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_AGREEMENT_CONSENSUS_H_
