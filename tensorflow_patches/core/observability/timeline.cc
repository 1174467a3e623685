#include "tensorflow_patches/core/observability/timeline.h"

#include <pthread.h>

#include <memory>
#include <mutex>
#include <unordered_map>

namespace tfmpi {

namespace internal {
std::atomic<uint32_t> g_recording{0};
}  // namespace internal

namespace {

int64_t Nanoseconds(TimePoint time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

// Of one thread. The lock is the owner's but for TakeEvents, so it is free when the owner wants it.
struct Buffer {
  std::mutex mutex;
  ThreadEvents thread;  // guarded by mutex
};

// Of the process; never destroyed, since threads may record while it exits.
struct Recorder {
  std::mutex mutex;
  std::vector<std::unique_ptr<Buffer>> buffers;  // guarded by mutex, as the next three
  std::vector<std::string> names = {""};
  std::unordered_map<std::string, uint32_t> ids = {{"", 0}};
  std::map<uint32_t, std::vector<std::string>> parts;
  std::atomic<uint64_t> kept{0};
  std::atomic<uint64_t> dropped{0};
  std::atomic<int64_t> nanoseconds[kNumStages] = {};
};

Recorder& GetRecorder() {
  static Recorder* const recorder = new Recorder;
  return *recorder;
}

Buffer* NewBuffer() {
  auto buffer = std::make_unique<Buffer>();
  char name[16] = {};
  pthread_getname_np(pthread_self(), name, sizeof name);
  buffer->thread.name = name;
  Recorder& recorder = GetRecorder();
  std::lock_guard<std::mutex> lock(recorder.mutex);
  recorder.buffers.push_back(std::move(buffer));
  return recorder.buffers.back().get();
}

bool IsFull() { return GetRecorder().kept.load(std::memory_order_relaxed) >= kMostEvents; }

// The number of `name`. A thread asks the others' table once for each name. What will be dropped
// needs none: names may be new for ever.
uint32_t NumberOf(std::string_view name) {
  if (name.empty() || (Recording() & kRecordEvents) == 0 || IsFull()) return 0;
  thread_local std::unordered_map<std::string, uint32_t> known;
  thread_local std::string key;  // keeps its memory from call to call
  key.assign(name);
  if (auto it = known.find(key); it != known.end()) return it->second;
  Recorder& recorder = GetRecorder();
  std::lock_guard<std::mutex> lock(recorder.mutex);
  const auto [it, is_new] =
      recorder.ids.try_emplace(key, static_cast<uint32_t>(recorder.names.size()));
  if (is_new) recorder.names.push_back(key);
  known.emplace(key, it->second);
  return it->second;
}

void Keep(const Event& event) {
  Recorder& recorder = GetRecorder();
  const uint32_t recording = Recording();
  if ((recording & kRecordTotals) != 0) {
    recorder.nanoseconds[static_cast<int>(event.stage)].fetch_add(event.end - event.start,
                                                                  std::memory_order_relaxed);
  }
  if ((recording & kRecordEvents) == 0) return;
  if (IsFull() || recorder.kept.fetch_add(1, std::memory_order_relaxed) >= kMostEvents) {
    recorder.dropped.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  thread_local Buffer* const buffer = NewBuffer();
  std::lock_guard<std::mutex> lock(buffer->mutex);
  buffer->thread.events.push_back(event);
}

}  // namespace

const char* Name(Stage stage) {
  static constexpr const char* kNames[kNumStages] = {"submit", "wait for peers", "response", "pack",
                                                     "reduce", "unpack",         "apply"};
  return kNames[static_cast<int>(stage)];
}

void StartRecording(uint32_t what) { internal::g_recording = what; }

void Record(Stage stage, std::string_view name, uint64_t bytes, uint32_t group, TimePoint start,
            TimePoint end) {
  if (Recording() == 0) return;
  Keep({Nanoseconds(start), Nanoseconds(end), bytes, NumberOf(name), group, stage});
}

void RecordParts(std::string_view name, const std::vector<std::string>& parts) {
  const uint32_t number = NumberOf(name);
  if (number == 0) return;
  Recorder& recorder = GetRecorder();
  std::lock_guard<std::mutex> lock(recorder.mutex);
  recorder.parts.try_emplace(number, parts);
}

void Span::Begin(Stage stage, std::string_view name, uint64_t bytes, uint32_t group) {
  begun_ = true;
  event_ = {Nanoseconds(Clock::now()), 0, bytes, NumberOf(name), group, stage};
}

void Span::End() {
  event_.end = Nanoseconds(Clock::now());
  Keep(event_);
}

Events TakeEvents() {
  Recorder& recorder = GetRecorder();
  std::lock_guard<std::mutex> lock(recorder.mutex);
  Events events;
  for (const std::unique_ptr<Buffer>& buffer : recorder.buffers) {
    std::lock_guard<std::mutex> buffer_lock(buffer->mutex);
    events.threads.push_back(buffer->thread);
  }
  events.names = recorder.names;
  events.parts = recorder.parts;
  events.dropped = recorder.dropped;
  return events;
}

double SecondsIn(Stage stage) {
  return 1e-9 * static_cast<double>(GetRecorder().nanoseconds[static_cast<int>(stage)].load());
}

}  // namespace tfmpi
