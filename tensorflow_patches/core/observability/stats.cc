#include "tensorflow_patches/core/observability/stats.h"

#include <algorithm>
#include <cstdio>

#include "tensorflow_patches/core/observability/timeline.h"

namespace tfmpi {
namespace {

// Limits last_step_. A script that averages under a new name each time has no recognizable steps.
constexpr size_t kMaxNames = size_t{1} << 16;

}  // namespace

// The time up to `time` in which some gradient was outstanding. If `time` is before the current
// interval, that counts as zero.
Clock::duration CommunicationStats::Busy(TimePoint time) const {
  const TimePoint until = outstanding_ > 0 ? time : std::min(time, busy_until_);
  return busy_before_ + std::max(until - busy_since_, Clock::duration::zero());
}

void CommunicationStats::NoteSubmission(const Request& request) {
  const TimePoint time = request.submitted;
  if (BeginsStep(request.name)) {
    if (numbers_.gradients != 0) EndStep(time);
    ++numbers_.steps;
  }
  numbers_.gradients += Tensors(request.signature);
  // Begins an interval, unless this gradient was submitted before the previous one was complete.
  if (outstanding_ == 0 && time > busy_until_) {
    busy_before_ += busy_until_ - busy_since_;
    busy_since_ = busy_until_ = time;
  }
  ++outstanding_;
  busy_at_last_submit_ = std::max(busy_at_last_submit_, Busy(time));
}

// Notes a gradient. Returns whether it begins a step: it is the first, or the current step has
// already had it.
bool CommunicationStats::BeginsStep(const std::string& name) {
  if (last_step_.size() >= kMaxNames && last_step_.count(name) == 0) return false;
  uint64_t& last = last_step_[name];  // 0: never
  const bool begins = last == numbers_.steps;
  last = numbers_.steps + (begins ? 1 : 0);
  return begins;
}

void CommunicationStats::EndStep(TimePoint now) {
  const Clock::duration busy = std::max(Busy(now), busy_at_last_submit_);
  numbers_.exposed += Seconds(busy - busy_at_last_submit_);
  numbers_.hidden += Seconds(busy_at_last_submit_ - busy_at_step_begin_);
  busy_at_step_begin_ = busy_at_last_submit_ = busy;
}

void CommunicationStats::NoteOperation(OpKind kind, size_t tensors, uint64_t bytes) {
  ++numbers_.operations;
  if (kind != OpKind::kAllreduce || tensors == 0) return;
  size_t size = 0;
  while (size + 1 < numbers_.by_bytes.size() && bytes > (uint64_t{4096} << (2 * size))) ++size;
  ++numbers_.by_bytes[size];
  size_t fused = 0;
  while (fused + 1 < numbers_.by_tensors.size() && (tensors >> (fused + 1)) != 0) ++fused;
  ++numbers_.by_tensors[fused];
}

void CommunicationStats::EndedAt(const Request& request, bool ok, TimePoint now) {
  const Signature& signature = request.signature;
  if (ok) {
    ++numbers_.requests;
    numbers_.bytes += Bytes(signature);
  }
  if (!IsGradient(signature)) return;
  if (--outstanding_ == 0) busy_until_ = now;
}

RankStats CommunicationStats::Finish(TimePoint now) {
  if (numbers_.gradients != 0) EndStep(now);
  numbers_.pack = SecondsIn(Stage::kPack);
  numbers_.reduce = SecondsIn(Stage::kReduce);
  numbers_.unpack = SecondsIn(Stage::kUnpack);
  numbers_.apply = SecondsIn(Stage::kApply);
  return numbers_;
}

namespace {

class JsonObject {
 public:
  void Add(const char* key, uint64_t value) { Raw(key, std::to_string(value)); }
  void Add(const char* key, double value) {
    char text[40];
    std::snprintf(text, sizeof text, "%.9g", value);
    Raw(key, text);
  }
  template <size_t kCount>
  void Add(const char* key, const std::array<uint64_t, kCount>& values) {
    std::string list = "[";
    for (uint64_t value : values) list += (list.size() > 1 ? "," : "") + std::to_string(value);
    Raw(key, list + "]");
  }
  std::string text() const { return "{" + text_ + "}"; }

 private:
  void Raw(const char* key, const std::string& value) {
    text_ += (text_.empty() ? "\"" : ",\"") + std::string(key) + "\":" + value;
  }
  std::string text_;
};

std::string Format(const RankStats& rank) {
  JsonObject object;
  object.Add("steps", rank.steps);
  object.Add("gradients", rank.gradients);
  object.Add("requests", rank.requests);
  object.Add("waits", rank.waits);
  object.Add("operations", rank.operations);
  object.Add("bytes", rank.bytes);
  object.Add("rounds", rank.rounds);
  object.Add("messages_sent", rank.messages_sent);
  object.Add("messages_received", rank.messages_received);
  object.Add("message_bytes", rank.message_bytes);
  object.Add("by_bytes", rank.by_bytes);
  object.Add("by_tensors", rank.by_tensors);
  object.Add("exposed", rank.exposed);
  object.Add("hidden", rank.hidden);
  object.Add("wait", rank.wait);
  object.Add("pack", rank.pack);
  object.Add("reduce", rank.reduce);
  object.Add("unpack", rank.unpack);
  object.Add("apply", rank.apply);
  return object.text();
}

}  // namespace

std::string FormatStats(const std::vector<RankStats>& ranks, const std::vector<LastReady>& last) {
  std::string text = "{\"ranks\":[";
  for (const RankStats& rank : ranks) text += (&rank == &ranks[0] ? "" : ",") + Format(rank);
  text += "],\"last_ready\":[";
  for (const LastReady& rank : last) {
    JsonObject object;
    object.Add("times", rank.times);
    object.Add("seconds", rank.seconds);
    text += (&rank == &last[0] ? "" : ",") + object.text();
  }
  return text + "]}";
}

}  // namespace tfmpi
