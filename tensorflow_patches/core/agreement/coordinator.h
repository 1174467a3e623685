// Decides, on rank 0, what all ranks do next: which tensors are ready everywhere, in which order,
// and which of them are fused.
//
// TensorFlow runs optimizer ops in an order that differs between ranks and steps. Each rank
// announces what is ready; the coordinator answers with response lists, which every rank executes
// in the same order. It does no I/O: the engine of rank 0 passes messages in and sends the results,
// on the communication thread only. Time is an argument, so tests need no clock.

#ifndef TFMPI_CORE_AGREEMENT_COORDINATOR_H_
#define TFMPI_CORE_AGREEMENT_COORDINATOR_H_

#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "tensorflow_patches/core/agreement/message.h"
#include "tensorflow_patches/core/base/sizes.h"
#include "tensorflow_patches/core/observability/stats.h"

namespace tfmpi {

struct CoordinatorOptions {
  size_t fusion_threshold = kFusionBytes;                      // bytes on the wire
  Clock::duration stall_warning = std::chrono::seconds(60);    // 0: never
  Clock::duration stall_timeout = std::chrono::seconds(1800);  // 0: never
  // An idle rank counts as waiting for the others after this time; 0: no deadlock is detected.
  Clock::duration deadlock_timeout = std::chrono::seconds(3);
};

// Posted to every rank repeatedly while a request of rank 0 waits for ranks that have not submitted
// it. They then report what they do (WaitStateReporter), and a rank that waits for a file of rank 0
// soon ends that wait (python/_src/files/waits.py).
constexpr char kRank0Waits[] = "rank 0 waits";

class Coordinator {
 public:
  Coordinator(int size, const CoordinatorOptions& options, TimePoint now);

  void Receive(int rank, const ReadyList& ready_list, TimePoint now);

  // Whether every request has been answered, nothing waits for Decide, no rank must still announce
  // a request that an error has answered, and no rank has joined.
  bool nothing_open() const {
    return pending_.empty() && agreed_.empty() && early_errors_.empty() && next_.empty() &&
           num_joined_ == 0;
  }
  // The ranks have agreed on a list without Decide. `id`: a name in it, for stall reports.
  void Predicted(NameId id, TimePoint now) {
    predicted_ = id;
    predicted_at_ = now;
    ++answers_;
  }

  // Tells every rank, with the next response list, that `key` has happened once more.
  void Post(const std::string& key) {
    next_.posts.push_back(key);
    ++posts_;
  }

  // Everything decided since the last call, including stalls that have timed out.
  ResponseList Decide(TimePoint now);

  // By rank: how often it was the last to be ready with a gradient, and by how much.
  const std::vector<LastReady>& last_ready() const { return last_ready_; }

  // Lines for rank 0 to print, about stalls, absent ranks and identical gradients.
  std::vector<std::string> TakeNotices();

 private:
  friend class Inspector;  // tests/core/simulation

  // A request for which some ranks are ready, but not all.
  struct Pending {
    NamedSignature named;  // as the first rank announced it
    int first_rank = 0;    // the first rank to announce it; after its withdrawal, another ready one
    std::vector<bool> ready;  // by rank
    int num_ready = 0;
    int lacking = 0;            // the missing rank found last; the next search starts there
    std::vector<int64_t> rows;  // GathersRows
    bool same_fingerprint = true;
    TimePoint since;   // when it was first announced
    TimePoint warned;  // at the last stall warning; before that, `since`
    TimePoint latest;  // when a rank last became ready
  };

  struct Peer {
    bool joined = false;
    std::string last_name;  // of its latest announcement
    TimePoint last_time;
    WaitState wait_state;
  };

  void Announce(int rank, const NamedSignature& named, TimePoint now);
  void Withdraw(int rank, const std::string& name);
  void Join(int rank);
  void Leave(int rank, const std::string& why);
  void Refuse(int rank, const std::string& what);
  void CheckAllReady();
  void CheckReady(const std::string& name);
  void NoteAbsent(const Pending& pending, const std::string& absent);
  bool TakeEarlyError(int rank, const std::string& name);
  void NoteReady(int rank, Pending* pending, TimePoint now);
  void Fail(const std::string& name, Code code, const std::string& message);
  void CheckStalls(TimePoint now);
  std::string RankAndDoing(int rank) const;
  std::string DescribeAbsent(const Pending& pending) const;

  // In coordinator_waits.cc.
  void SetWaitState(int rank, const WaitState& wait_state);
  void EndWaitsIn(const std::string& name);
  bool HasNoGradients(int rank) const;
  // Whether `pending` must still wait for `rank`. Averages and sparse updates of a step, and
  // background requests, do not wait for a rank that has no gradients.
  bool Lacks(const Pending& pending, int rank) const;
  std::vector<const Pending*> WaitsIn(int rank) const;
  bool WaitsForAny(int rank, const std::vector<bool>& stuck) const;
  std::vector<bool> FindStuck() const;
  void CheckDeadlock(TimePoint now);
  std::string DescribeDeadlock(const std::vector<bool>& stuck) const;

  void PostRank0Waits(TimePoint now);
  void Plan(ResponseList* response_list);
  NameId IdOf(const NamedSignature& named) const;
  ResponseItem MakeItem(Pending* pending);
  void NoteFingerprints(const Pending& pending, bool is_new);
  std::string StallReport(const Pending& pending, TimePoint now) const;

  const int size_;
  const CoordinatorOptions options_;
  std::vector<Peer> peers_;
  std::vector<LastReady> last_ready_;
  int num_joined_ = 0;
  int noted_contributors_ = 1 << 30;  // the smallest number that NoteAbsent has reported
  std::unordered_map<std::string, Pending> pending_;
  std::vector<Pending> agreed_;        // ready everywhere, in the order in which they became so
  std::vector<NamedSignature> by_id_;  // by number
  NameId predicted_ = kNoId;
  TimePoint predicted_at_;
  std::unordered_map<std::string, std::vector<NameId>> ids_;  // by name; one per signature
  // By name and rank: how many of the rank's next requests have already been answered by errors
  // that were sent to all ranks.
  std::unordered_map<std::string, std::map<int, int>> early_errors_;
  ResponseList next_;  // for Decide, which adds the responses
  std::vector<std::string> notices_;
  TimePoint last_stall_check_;
  TimePoint last_rank_0_waits_post_;
  uint64_t posts_ = 0;    // so far, by Post
  uint64_t answers_ = 0;  // so far, agreements that complete requests
  bool deadlocked_ = false;
  TimePoint deadlocked_since_;

  // For the warning that all ranks get the same data: the number of first gradients, and how many
  // of them had the same bits on all ranks.
  int first_gradients_ = 0;
  int equal_gradients_ = 0;
  bool fingerprints_compared_ = false;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_AGREEMENT_COORDINATOR_H_
