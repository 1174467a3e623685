// The costs of communication for one rank, for TF_MPI_STATS.
//
// Owned by the engine, updated on its communication thread only, read after that thread has ended.
// When off, each call tests one bool.

#ifndef TFMPI_CORE_OBSERVABILITY_STATS_H_
#define TFMPI_CORE_OBSERVABILITY_STATS_H_

#include <array>
#include <string>
#include <unordered_map>
#include <vector>

#include "tensorflow_patches/core/request/request.h"

namespace tfmpi {

// Plain data, sent unchanged between ranks of one build.
struct RankStats {
  uint64_t steps = 0;       // of training; a step ends when a gradient appears again
  uint64_t gradients = 0;   // tensors
  uint64_t requests = 0;    // that ended with ok, of one tensor or several
  uint64_t waits = 0;       // gradients' requests, whose times are in `wait`
  uint64_t operations = 0;  // agreed operations that were executed
  uint64_t bytes = 0;       // of the requests' tensors
  uint64_t rounds = 0;      // response lists with responses
  uint64_t messages_sent = 0;
  uint64_t messages_received = 0;
  uint64_t message_bytes = 0;  // sent
  // Allreduces by size: bucket i contains those of at most 4 KB * 4^i, the last all larger ones.
  std::array<uint64_t, 9> by_bytes = {};
  // Allreduces by tensors fused: bucket i contains those of 2^i to 2^(i+1) - 1.
  std::array<uint64_t, 12> by_tensors = {};
  // In seconds. A gradient is outstanding from its submission until it is complete.
  double exposed = 0;  // some gradient outstanding, and no more to come in this step
  double hidden = 0;   // some gradient outstanding while others of the step were being computed
  double wait = 0;     // sum over gradients' requests, from submission until all ranks agreed
  double pack = 0, reduce = 0, unpack = 0, apply = 0;  // in these stages (timeline.h)
};

// On rank 0, for each rank: how often it was the last to be ready, and how long others waited for
// it.
struct LastReady {
  uint64_t times = 0;
  double seconds = 0;  // sum of the times since the second-to-last rank was ready
};

class CommunicationStats {
 public:
  explicit CommunicationStats(bool on) : on_(on) {}

  void Submitted(const Request& request) {
    if (on_ && IsGradient(request.signature)) NoteSubmission(request);
  }
  void Agreed(const Request& request, TimePoint now) {
    if (!on_ || !IsGradient(request.signature)) return;
    ++numbers_.waits;
    numbers_.wait += Seconds(now - request.submitted);
  }
  void OperationBegins(OpKind kind, size_t tensors, uint64_t bytes) {
    if (on_) NoteOperation(kind, tensors, bytes);
  }
  void Ended(const Request& request, bool ok) {
    if (on_) EndedAt(request, ok, Clock::now());
  }
  void EndedAt(const Request& request, bool ok, TimePoint now);
  void Sent(size_t bytes) {
    if (!on_) return;
    ++numbers_.messages_sent;
    numbers_.message_bytes += bytes;
  }
  void Received() { numbers_.messages_received += on_; }
  void ResponseList(bool has_responses) { numbers_.rounds += on_ && has_responses; }

  // Ends the current step and adds the times of the stages (timeline.h).
  RankStats Finish(TimePoint now);

 private:
  static double Seconds(Clock::duration duration) {
    return std::chrono::duration<double>(duration).count();
  }
  void NoteSubmission(const Request& request);
  void NoteOperation(OpKind kind, size_t tensors, uint64_t bytes);
  bool BeginsStep(const std::string& name);
  void EndStep(TimePoint now);
  Clock::duration Busy(TimePoint time) const;

  const bool on_;
  RankStats numbers_;
  std::unordered_map<std::string, uint64_t> last_step_;  // of each gradient; the first step is 1

  // Time in which some gradient is outstanding: of past intervals, and the current one.
  Clock::duration busy_before_{0};
  TimePoint busy_since_, busy_until_;  // busy_until_ is valid if outstanding_ is 0
  int outstanding_ = 0;
  Clock::duration busy_at_step_begin_{0}, busy_at_last_submit_{0};
};

// A JSON object for tools and for Python: {"ranks": [{...}], "last_ready": [{...}]}.
std::string FormatStats(const std::vector<RankStats>& ranks, const std::vector<LastReady>& last);

}  // namespace tfmpi

#endif  // TFMPI_CORE_OBSERVABILITY_STATS_H_
