// What the ranks will agree on next, as training repeats its steps.
//
// A pure function of the response lists so far, which all ranks see alike, so all expect the same.
// Used by the communication thread.

#ifndef TFMPI_CORE_AGREEMENT_PREDICTOR_H_
#define TFMPI_CORE_AGREEMENT_PREDICTOR_H_

#include <deque>
#include <functional>
#include <vector>

#include "tensorflow_patches/core/agreement/message.h"
#include "tensorflow_patches/core/agreement/name_table.h"
#include "tensorflow_patches/core/transport/transport.h"

namespace tfmpi {

class ResponsePredictor {
 public:
  explicit ResponsePredictor(int ranks) : ranks_(ranks) {}

  // The ranks have agreed on `response_list`, which has responses. `table`: the names' numbers.
  void OnResponseList(const ResponseList& response_list, const NameTable& table);
  // They have agreed on what was expected.
  void OnPredictionHit() { now_ = known_[now_].successor; }

  // Whether a rank that has this to announce may vote for what is expected: all of that is in it.
  bool Fits(const ReadyList& ready_list) const;
  // The numbers of the names that are expected, ascending; empty if nothing is.
  const std::vector<NameId>& names() const;
  // Those of them whose rows differ by rank and time, in the order of the response list: each rank
  // says how many it has, next to its vote.
  const std::vector<NameId>& gathers() const;
  // How many rows each rank has of one of `gathers`; of all, before the response list is used.
  void SetRows(size_t gather, const std::function<int64_t(int rank)>& rows);
  // What is expected. Lives until OnResponseList is called.
  const ResponseList& response_list() const { return known_[known_[now_].successor].response_list; }

 private:
  friend class Inspector;  // tests/core/simulation

  // One that followed so often on the one before is expected.
  static constexpr int kTimes = 2;
  static constexpr size_t kMaxKnown = 32;
  static constexpr size_t kMaxNames = 64;
  static constexpr size_t kMaxGathers = Transport::kSharedNumbers;
  static constexpr int kNone = -1;

  struct Known {
    std::vector<NameId> names;  // of all items, in their order
    std::vector<NameId> sorted;
    std::vector<NameId> gathers;
    ResponseList response_list;
    int successor = kNone;
    int times = 0;  // in a row
  };

  bool MayBeExpected(const ResponseList& response_list, const NameTable& table) const;
  int Find(const ResponseList& response_list, const NameTable& table);
  bool IsExpecting() const { return now_ != kNone && known_[now_].times >= kTimes; }

  const int ranks_;
  std::deque<Known> known_;
  int now_ = kNone;  // the last agreement
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_AGREEMENT_PREDICTOR_H_
