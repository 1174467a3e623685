// Predicts what the ranks will agree on next, since training repeats its steps.
//
// A pure function of the response lists so far. All ranks see the same lists, so all predict the
// same. Used by the communication thread.

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
  static constexpr size_t kMaxGathers = Transport::kSharedNumbers / 2;  // ResponseBypass::RowsOf

  explicit ResponsePredictor(int ranks) : ranks_(ranks) {}

  // The ranks have agreed on `response_list`, which has responses. `table`: the numbers of names.
  void OnResponseList(const ResponseList& response_list, const NameTable& table);
  // They have agreed on the predicted list.
  void OnPredictionHit() { current_ = known_[current_].successor; }

  // Whether a rank with these announcements may vote for the prediction: they must include all of
  // its names, and no name without a number, no withdrawal, join or leave.
  bool Fits(const ReadyList& ready_list) const;
  // The numbers of the predicted names, ascending; empty if there is no prediction.
  const std::vector<NameId>& names() const;
  // The predicted gathers, in the order of the response list. Their numbers of rows differ by rank
  // and step; each rank publishes its own with its vote.
  const std::vector<NameId>& gathers() const;
  // Sets each rank's rows in gathers()[gather]. Call it for all of them before the list is used.
  void SetRows(size_t gather, const std::function<int64_t(int rank)>& rows);
  // The predicted list, if names() is not empty. Valid until OnResponseList is called.
  const ResponseList& response_list() const { return prediction().response_list; }

 private:
  friend class Inspector;  // tests/core/simulation

  // A list is predicted if it has followed the current one this often in a row.
  static constexpr int kMinStreak = 2;
  static constexpr size_t kMaxKnown = 32;
  static constexpr size_t kMaxNames = 64;
  static constexpr int kNone = -1;

  struct Known {
    std::vector<NameId> names;  // of all items, in their order
    std::vector<NameId> sorted;
    std::vector<NameId> gathers;
    ResponseList response_list;
    int successor = kNone;
    int streak = 0;  // how often in a row the successor has followed
  };

  bool IsPredictable(const ResponseList& response_list, const NameTable& table) const;
  int FindOrAdd(const ResponseList& response_list, const NameTable& table);
  bool HasPrediction() const { return current_ != kNone && known_[current_].streak >= kMinStreak; }
  const Known& prediction() const { return known_[known_[current_].successor]; }

  const int ranks_;
  std::deque<Known> known_;
  int current_ = kNone;  // the list last agreed on, in known_
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_AGREEMENT_PREDICTOR_H_
