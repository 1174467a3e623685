// Decides, on rank 0, what all ranks do next: which tensors are ready everywhere, in which order,
// fused how.
//
// TensorFlow runs Apply ops in an order that differs from rank to rank and from step to step. Each
// rank announces what is ready; the coordinator answers with response lists that every rank carries
// out in one order. It does no input or output: the engine of rank 0 feeds it and sends what it
// returns, on the communication thread alone. It owns all its state; time comes in as an argument,
// so tests need no clock.

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
  // Ranks that wait for one another, and that have done nothing else for so long; 0: never.
  Clock::duration deadlock_timeout = std::chrono::seconds(3);
};

// What every rank is told, again and again, while rank 0 waits for ranks that have not asked for
// the same. Who hears it twice since it last asked for something knows what rank 0 is not doing.
constexpr char kRank0Waits[] = "rank 0 waits";

class Coordinator {
 public:
  Coordinator(int size, const CoordinatorOptions& options, TimePoint now);

  // Takes in what `rank` says.
  void Receive(int rank, const ReadyList& ready_list, TimePoint now);

  // It knows of nothing that a rank has said, or will say, that it has not answered.
  bool idle() const {
    return pending_.empty() && agreed_.empty() && answered_.empty() && next_.empty() &&
           num_joined_ == 0;
  }
  // All ranks have agreed among themselves on this name, and maybe others.
  void Predicted(NameId id, TimePoint now) {
    predicted_ = id;
    predicted_at_ = now;
    ++answers_;
  }

  // Every rank is told, with the next response list, that `key` has happened once more.
  void Post(const std::string& key) {
    next_.posts.push_back(key);
    ++posts_;
  }

  // All that has been decided since the last call, stalls included.
  ResponseList Decide(TimePoint now);

  // By rank, of gradients, since the start.
  const std::vector<LastReady>& last_ready() const { return last_ready_; }

  // Lines for people, to be printed by rank 0: stall reports, ranks that have finished, equal data.
  std::vector<std::string> TakeNotices();

 private:
  friend class Inspector;  // tests/core/simulation

  // A name that some ranks are ready for.
  struct Pending {
    NamedSignature named;  // as the first rank announced it
    int first_rank = 0;
    std::vector<bool> ready;  // by rank
    int num_ready = 0;
    int lacking = 0;            // a rank that was found to lack it, and may still
    std::vector<int64_t> rows;  // GathersRows
    bool same_fingerprint = true;
    TimePoint since;
    TimePoint warned;
    TimePoint latest;  // when a rank last became ready
  };

  struct Peer {
    bool joined = false;
    std::string last_name;  // what it announced last
    TimePoint last_time;
    WaitState wait_state;
  };

  void Announce(int rank, const NamedSignature& named, TimePoint now);
  void Withdraw(int rank, const std::string& name);
  void Join(int rank);
  void Leave(int rank, const std::string& why);
  void Refuse(int rank, const std::string& what);
  void CheckAllReady();
  void Agree(const std::string& name);
  void CheckReady(const std::string& name);
  void NoteAbsent(const Pending& pending, const std::string& absent);
  bool WasAnswered(int rank, const std::string& name);
  void NoteReady(int rank, Pending* pending, TimePoint now);
  void Fail(const std::string& name, Code code, const std::string& message);
  void CheckStalls(TimePoint now);
  std::string RankAndDoing(int rank) const;
  std::string DescribeAbsent(const Pending& pending) const;

  // coordinator_waits.cc: ranks that say what they wait for.
  void SetWaitState(int rank, const WaitState& wait_state);
  void Answered(const std::string& name);
  bool HasNoGradients(int rank) const;
  bool Lacks(const Pending& pending, int rank) const;
  std::vector<const Pending*> WaitsIn(int rank) const;
  bool CannotGoOn(int rank, const std::vector<bool>& stuck) const;
  std::vector<bool> FindStuck() const;
  void CheckDeadlock(TimePoint now);
  std::string DescribeDeadlock(const std::vector<bool>& stuck) const;

  void TellThatRank0Waits(TimePoint now);
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
  int noted_contributors_ = 1 << 30;  // of the last notice about finished ranks
  std::unordered_map<std::string, Pending> pending_;
  std::vector<Pending> agreed_;  // ready everywhere, in the order in which they became so
  std::vector<NamedSignature> by_id_;
  NameId predicted_ = kNoId;
  TimePoint predicted_at_;
  std::unordered_map<std::string, std::vector<NameId>> ids_;  // one of each signature
  // By name and rank, how many of the rank's next requests were answered already, by errors that
  // were sent to all.
  std::unordered_map<std::string, std::map<int, int>> answered_;
  ResponseList next_;
  std::vector<std::string> notices_;
  TimePoint last_stall_check_;
  TimePoint told_that_rank_0_waits_;
  uint64_t posts_ = 0;    // so far, by Post
  uint64_t answers_ = 0;  // so far, agreements that were no mere posts
  bool deadlocked_ = false;
  TimePoint deadlocked_since_;

  // For the warning that all ranks are fed the same data: first gradients, and how many of them had
  // the same bits on all ranks.
  int first_gradients_ = 0;
  int equal_gradients_ = 0;
  bool fingerprints_judged_ = false;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_AGREEMENT_COORDINATOR_H_
