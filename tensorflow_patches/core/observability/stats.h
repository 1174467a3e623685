// What communication cost one rank, counted for TF_MPI_STATS.
//
// Owned by the engine, fed by its communication thread alone, read when that has ended. Off, each
// call is one test of a bool.

#ifndef TFMPI_CORE_OBSERVABILITY_STATS_H_
#define TFMPI_CORE_OBSERVABILITY_STATS_H_

#include <array>
#include <string>
#include <unordered_map>
#include <vector>

#include "tensorflow_patches/core/request/request.h"

namespace tfmpi {

// Plain data: travels between ranks of one build as it is.
struct RankStats {
  uint64_t steps = 0;       // of training; a step ends where a gradient comes once more
  uint64_t gradients = 0;   // tensors
  uint64_t requests = 0;    // of one tensor or several, that ended well
  uint64_t waits = 0;       // requests that `wait` sums over
  uint64_t operations = 0;  // agreed operations carried out
  uint64_t bytes = 0;       // of the requests' tensors
  uint64_t rounds = 0;      // response lists that let something begin
  uint64_t messages_sent = 0;
  uint64_t messages_received = 0;
  uint64_t message_bytes = 0;  // of those sent
  // Allreduces by size: bucket i holds those of at most 4 KB * 4^i, the last all larger ones.
  std::array<uint64_t, 9> by_bytes = {};
  // Allreduces by tensors fused: bucket i holds those of 2^i to 2^(i+1) - 1.
  std::array<uint64_t, 12> by_tensors = {};
  // Seconds. A gradient is outstanding from its submission to its end.
  double exposed = 0;  // some gradient outstanding, and no more to come in this step
  double hidden = 0;   // some gradient outstanding, while others of the step were still computed
  double wait = 0;     // sum over requests, from submission until all ranks had agreed
  double pack = 0, reduce = 0, unpack = 0, apply = 0;
};

// Rank 0's: which rank was the last to be ready, how often, and how long the others had waited.
struct LastReady {
  uint64_t times = 0;
  double seconds = 0;  // since the last but one, summed
};

class CommunicationStats {
 public:
  explicit CommunicationStats(bool on) : on_(on) {}

  bool on() const { return on_; }
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
  void Ended(const Request& request, bool well) {
    if (on_) EndedAt(request, well, Clock::now());
  }
  void EndedAt(const Request& request, bool well, TimePoint now);
  void Sent(size_t bytes) {
    if (!on_) return;
    ++numbers_.messages_sent;
    numbers_.message_bytes += bytes;
  }
  void Received() { numbers_.messages_received += on_; }
  void ResponseList(bool starts_something) { numbers_.rounds += on_ && starts_something; }

  // Ends the step under way and adds the time of the stages (timeline.h).
  RankStats Finish(TimePoint now);

 private:
  static double Seconds(Clock::duration duration) {
    return std::chrono::duration<double>(duration).count();
  }
  void NoteSubmission(const Request& request);
  void NoteOperation(OpKind kind, size_t tensors, uint64_t bytes);
  bool ComesAgain(const std::string& name);
  void EndStep(TimePoint now);
  Clock::duration Busy(TimePoint time) const;

  const bool on_;
  RankStats numbers_;
  std::unordered_map<std::string, uint64_t> last_step_;  // of each gradient; from 1

  // Time in which some gradient is outstanding: of intervals that are over, and the present one.
  Clock::duration busy_before_{0};
  TimePoint busy_since_, busy_until_;  // busy_until_ holds when outstanding_ is 0
  int outstanding_ = 0;
  Clock::duration busy_at_step_begin_{0}, busy_at_last_submit_{0};
};

// A JSON object for people's tools and Python: {"ranks": [{...}], "last_ready": [{...}]}.
std::string FormatStats(const std::vector<RankStats>& ranks, const std::vector<LastReady>& last);

}  // namespace tfmpi

#endif  // TFMPI_CORE_OBSERVABILITY_STATS_H_
