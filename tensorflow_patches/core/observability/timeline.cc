#include "tensorflow_patches/core/observability/timeline.h"

#include <pthread.h>

#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace tfmpi {

namespace internal {
std::atomic<uint32_t> g_recording{0};
}  // namespace internal

namespace {

int64_t Nanoseconds(TimePoint time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

// The number of consecutive events of a thread that are dropped at a time.
constexpr size_t kBlockEvents = 1024;
constexpr size_t kMaxBlocks = kMaxEvents / kBlockEvents;
// After this many new names, those that no kept event uses are dropped.
constexpr uint32_t kMaxNewNames = 1 << 15;

// The events of one thread. Besides that thread only CopyEvents, DropOldest and DropNames take the
// lock, so it is usually free. A thread that needs both locks takes the recorder's first.
struct Buffer {
  std::mutex mutex;
  std::string name;
  std::deque<std::vector<Event>> blocks;  // guarded by mutex; none is empty, the last one grows
};

// One per process; never destroyed, since threads may record while the process exits.
struct Recorder {
  std::mutex mutex;
  std::vector<std::unique_ptr<Buffer>> buffers;  // guarded by mutex, like all up to `generation`
  size_t blocks = 0;                             // of all buffers
  uint64_t dropped = 0;
  std::unordered_map<uint32_t, std::string> names = {{0, ""}};
  std::unordered_map<std::string, uint32_t> ids = {{"", 0}};
  std::map<uint32_t, std::vector<std::string>> parts;
  uint32_t next_id = 1;
  uint32_t dropped_at = 0;  // next_id when names were last dropped
  // How often names were dropped. Each time the names that threads have cached become invalid.
  std::atomic<uint32_t> generation{0};
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
  buffer->name = name;
  Recorder& recorder = GetRecorder();
  std::lock_guard<std::mutex> lock(recorder.mutex);
  recorder.buffers.push_back(std::move(buffer));
  return recorder.buffers.back().get();
}

// Requires the recorder's lock. Drops names that no event uses, except new ones, whose events may
// still be recorded.
void DropNames(Recorder* recorder) {
  if (recorder->next_id - recorder->dropped_at < kMaxNewNames) return;
  std::unordered_set<uint32_t> used = {0};
  for (const std::unique_ptr<Buffer>& buffer : recorder->buffers) {
    std::lock_guard<std::mutex> lock(buffer->mutex);
    for (const std::vector<Event>& block : buffer->blocks) {
      for (const Event& event : block) used.insert(event.name);
    }
  }
  const uint32_t recent = recorder->next_id - kMaxNewNames / 2;
  for (auto it = recorder->names.begin(); it != recorder->names.end();) {
    if (it->first >= recent || used.count(it->first) != 0) {
      ++it;
      continue;
    }
    recorder->ids.erase(it->second);
    recorder->parts.erase(it->first);
    it = recorder->names.erase(it);
  }
  recorder->dropped_at = recorder->next_id;
  recorder->generation.fetch_add(1, std::memory_order_relaxed);
}

// The number of `name`; 0 if it is empty or kRecordEvents is off. A thread looks each name up in
// the shared table only once, until names are dropped.
uint32_t NumberOf(std::string_view name) {
  if (name.empty() || (Recording() & kRecordEvents) == 0) return 0;
  thread_local std::unordered_map<std::string, uint32_t> known;
  thread_local uint32_t known_generation = 0;
  thread_local std::string key;  // keeps its memory between calls
  Recorder& recorder = GetRecorder();
  if (known_generation != recorder.generation.load(std::memory_order_relaxed)) known.clear();
  key.assign(name);
  if (auto it = known.find(key); it != known.end()) return it->second;
  std::lock_guard<std::mutex> lock(recorder.mutex);
  DropNames(&recorder);
  known_generation = recorder.generation.load(std::memory_order_relaxed);
  const auto [it, is_new] = recorder.ids.try_emplace(key, recorder.next_id);
  if (is_new) recorder.names[recorder.next_id++] = key;
  known.emplace(key, it->second);
  return it->second;
}

// Requires the recorder's lock. Drops the oldest block; called when there are kMaxBlocks.
void DropOldest(Recorder* recorder) {
  Buffer* oldest = nullptr;
  int64_t first = INT64_MAX;
  for (const std::unique_ptr<Buffer>& buffer : recorder->buffers) {
    std::lock_guard<std::mutex> lock(buffer->mutex);
    if (buffer->blocks.empty() || buffer->blocks.front().front().end >= first) continue;
    oldest = buffer.get();
    first = buffer->blocks.front().front().end;
  }
  if (oldest == nullptr) return;
  std::lock_guard<std::mutex> lock(oldest->mutex);
  recorder->dropped += oldest->blocks.front().size();
  oldest->blocks.pop_front();
  --recorder->blocks;
}

void Keep(const Event& event) {
  Recorder& recorder = GetRecorder();
  const uint32_t recording = Recording();
  if ((recording & kRecordTotals) != 0) {
    recorder.nanoseconds[static_cast<int>(event.stage)].fetch_add(event.end - event.start,
                                                                  std::memory_order_relaxed);
  }
  if ((recording & kRecordEvents) == 0) return;
  thread_local Buffer* const buffer = NewBuffer();
  {
    std::lock_guard<std::mutex> lock(buffer->mutex);
    if (!buffer->blocks.empty() && buffer->blocks.back().size() < kBlockEvents) {
      buffer->blocks.back().push_back(event);
      return;
    }
  }
  std::lock_guard<std::mutex> lock(recorder.mutex);
  while (recorder.blocks >= kMaxBlocks) DropOldest(&recorder);
  std::lock_guard<std::mutex> buffer_lock(buffer->mutex);
  buffer->blocks.emplace_back();
  buffer->blocks.back().reserve(kBlockEvents);
  buffer->blocks.back().push_back(event);
  ++recorder.blocks;
}

// Copies the names that `events` use, renumbered.
void TakeNames(const Recorder& recorder, Events* events) {
  std::unordered_map<uint32_t, uint32_t> numbers = {{0, 0}};
  events->names = {""};
  for (ThreadEvents& thread : events->threads) {
    for (Event& event : thread.events) {
      const auto [it, is_new] =
          numbers.try_emplace(event.name, static_cast<uint32_t>(events->names.size()));
      if (is_new) {
        const auto name = recorder.names.find(event.name);
        events->names.push_back(name != recorder.names.end() ? name->second : "?");
        const auto parts = recorder.parts.find(event.name);
        if (parts != recorder.parts.end()) events->parts[it->second] = parts->second;
      }
      event.name = it->second;
    }
  }
}

}  // namespace

const char* Name(Stage stage) {
  static constexpr const char* kNames[kNumStages] = {"submit", "wait for peers", "response",
                                                     "pack",   "reduce",         "unpack",
                                                     "apply",  "wait for input"};
  return kNames[static_cast<int>(stage)];
}

void StartRecording(uint32_t what) {
  // A forked child records nothing: another thread may have held a lock when it was forked.
  static const int registered = pthread_atfork(nullptr, nullptr, [] { internal::g_recording = 0; });
  static_cast<void>(registered);
  internal::g_recording = what;
}

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

Events CopyEvents() {
  Recorder& recorder = GetRecorder();
  std::lock_guard<std::mutex> lock(recorder.mutex);
  Events events;
  for (const std::unique_ptr<Buffer>& buffer : recorder.buffers) {
    std::lock_guard<std::mutex> buffer_lock(buffer->mutex);
    ThreadEvents thread{buffer->name, {}};
    for (const std::vector<Event>& block : buffer->blocks) {
      thread.events.insert(thread.events.end(), block.begin(), block.end());
    }
    if (!thread.events.empty()) events.threads.push_back(std::move(thread));
  }
  TakeNames(recorder, &events);
  events.dropped = recorder.dropped;
  return events;
}

double SecondsIn(Stage stage) {
  return 1e-9 * static_cast<double>(GetRecorder().nanoseconds[static_cast<int>(stage)].load());
}

}  // namespace tfmpi
