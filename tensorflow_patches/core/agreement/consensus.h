// How the ranks of a group, if all are on one node, agree without a message on the response list
// that each of them expects next.
//
// Agreements have positions, numbered identically on all ranks. At a position each rank may vote
// for what it expects there. The vote is committed when all ranks have voted, and rejected if a
// rank rejects it before that. Both outcomes are final, and the same for all ranks.
//
// Other ranks may leave a position before this rank has seen its outcome: NCCL, for example, only
// enqueues what was committed. But without this rank's vote nothing more is committed, so if its
// last vote was committed, that is the last commit, whose position the word contains.
//
// Called on the communication thread. The ranks share the word, which is initially zero.

#ifndef TFMPI_CORE_AGREEMENT_CONSENSUS_H_
#define TFMPI_CORE_AGREEMENT_CONSENSUS_H_

#include <atomic>
#include <cstdint>

#include "tensorflow_patches/core/base/clock.h"

namespace tfmpi {

enum class Outcome { kOpen, kCommitted, kRejected };

class Consensus {
 public:
  // `word` null: every vote is rejected.
  Consensus(std::atomic<uint64_t>* word, int ranks)
      : word_(word), ranks_(static_cast<uint64_t>(ranks)) {}

  bool takes_votes() const { return word_ != nullptr; }
  // A rank votes at most once at a position, and leaves it only after the outcome is known.
  Outcome Vote(uint64_t position) {
    return Change(position, [](uint64_t votes) { return votes + 1; });
  }
  // `rejected_votes`: set to whether there were votes, whose ranks may be asleep.
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
  // Polls until the outcome is known, for about a microsecond at most.
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
  // From the lowest bits: the number of votes at a position, or kRejection; how many positions
  // before it the last commit was, or 0 if none was near enough; the position.
  static constexpr int kVoteBits = 12, kPositionShift = 24;
  static constexpr uint64_t kRejection = (uint64_t{1} << kVoteBits) - 1;
  static constexpr uint64_t kFarthest = (uint64_t{1} << (kPositionShift - kVoteBits)) - 1;

  static uint64_t PositionOf(uint64_t word) { return word >> kPositionShift; }
  static uint64_t VotesOf(uint64_t word) { return word & kRejection; }
  static uint64_t DistanceOf(uint64_t word) { return word >> kVoteBits & kFarthest; }

  Outcome Judge(uint64_t position, uint64_t word) const {
    const uint64_t at = PositionOf(word), votes = VotesOf(word);
    if (at < position) return Outcome::kOpen;
    const bool last_commit = at == position ? votes == ranks_ : at - position == DistanceOf(word);
    if (last_commit) return Outcome::kCommitted;
    return at == position && votes != kRejection ? Outcome::kOpen : Outcome::kRejected;
  }

  // How many positions before `position` the last commit was, or 0 if none was near enough.
  uint64_t Distance(uint64_t position, uint64_t word) const {
    const bool committed = VotesOf(word) == ranks_;
    if (!committed && DistanceOf(word) == 0) return 0;
    const uint64_t distance = position - PositionOf(word) + (committed ? 0 : DistanceOf(word));
    return distance <= kFarthest ? distance : 0;
  }

  template <typename Next>
  Outcome Change(uint64_t position, const Next& next) {
    if (word_ == nullptr) return Outcome::kRejected;
    uint64_t word = word_->load(std::memory_order_seq_cst);
    while (true) {
      const Outcome outcome = Judge(position, word);
      if (outcome != Outcome::kOpen) return outcome;
      const uint64_t votes = PositionOf(word) == position ? VotesOf(word) : 0;
      const uint64_t changed =
          position << kPositionShift | Distance(position, word) << kVoteBits | next(votes);
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
