// Records what each thread of this process does, and when.
//
// Any thread records. Each has its own buffer, so threads hardly ever wait for each other. There is
// one recorder per process. Until StartRecording a Span costs one relaxed atomic load, afterwards
// two reads of the clock. Memory is bounded: when it is full, the oldest events are counted and
// dropped, since the interesting ones are usually near the end.

#ifndef TFMPI_CORE_OBSERVABILITY_TIMELINE_H_
#define TFMPI_CORE_OBSERVABILITY_TIMELINE_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tensorflow_patches/core/base/types.h"

namespace tfmpi {

enum class Stage : uint8_t {
  kSubmit = 0,    // a thread of TensorFlow submits a request to the engine
  kWait = 1,      // from there until all ranks have agreed on it
  kResponse = 2,  // communication thread: one agreed operation; contains the next three
  kPack = 3,
  kReduce = 4,  // inside the transport
  kUnpack = 5,  // also, on a thread of TensorFlow, the sum of gathered sparse rows
  kApply = 6,   // the stock kernel
  kInput = 7,   // waiting for a batch that was requested from an input pipeline
};
inline constexpr int kNumStages = 8;
const char* Name(Stage stage);

// What is being recorded: bits of Recording().
inline constexpr uint32_t kRecordEvents = 1;  // every span, for a trace
inline constexpr uint32_t kRecordTotals = 2;  // the time of each stage

namespace internal {
extern std::atomic<uint32_t> g_recording;
}  // namespace internal

inline uint32_t Recording() { return internal::g_recording.load(std::memory_order_relaxed); }
// `what`: bits as above. Call it before other threads record.
void StartRecording(uint32_t what);

struct Event {
  int64_t start = 0;  // ns of the steady clock
  int64_t end = 0;
  uint64_t bytes = 0;
  uint32_t name = 0;   // index into Events::names; the recorder's number before CopyEvents
  uint32_t group = 0;  // kResponse, kWait: the response's number, from 1. kSubmit: 1 for a gradient
  Stage stage = Stage::kSubmit;
};

struct ThreadEvents {
  std::string name;
  std::vector<Event> events;  // in the order in which they ended, but a kWait may come later
};

// Everything that one process has recorded.
struct Events {
  std::vector<std::string> names;
  // By index of a name that represents several tensors: their names.
  std::map<uint32_t, std::vector<std::string>> parts;
  std::vector<ThreadEvents> threads;
  uint64_t dropped = 0;
};

// For an event that begins and ends on different threads; otherwise use Span. Call it on the thread
// to whose track the event belongs.
void Record(Stage stage, std::string_view name, uint64_t bytes, uint32_t group, TimePoint start,
            TimePoint end);

// Says that `name` represents these tensors. Call it again with each event, since a name that no
// kept event uses may have been dropped.
void RecordParts(std::string_view name, const std::vector<std::string>& parts);

// A copy of everything recorded so far and not dropped.
Events CopyEvents();
// Seconds spent in a stage so far, over all threads; 0 unless kRecordTotals is set.
double SecondsIn(Stage stage);

// At most this many events are kept per process, the latest ones (10 MB).
inline constexpr uint64_t kMaxEvents = uint64_t{1} << 18;

// Records its own lifetime.
class Span {
 public:
  // `name` is only read in the constructor.
  explicit Span(Stage stage, std::string_view name = {}, uint64_t bytes = 0, uint32_t group = 0) {
    if (Recording() != 0) Begin(stage, name, bytes, group);
  }
  ~Span() {
    if (begun_) End();
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  void Begin(Stage stage, std::string_view name, uint64_t bytes, uint32_t group);
  void End();

  bool begun_ = false;
  Event event_;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_OBSERVABILITY_TIMELINE_H_
