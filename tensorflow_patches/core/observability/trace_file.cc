#include "tensorflow_patches/core/observability/trace_file.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <unordered_map>
#include <utility>

#include "tensorflow_patches/core/base/bytes.h"
#include "tensorflow_patches/core/base/thread_role.h"
#include "tensorflow_patches/core/observability/trace_steps.h"

namespace tfmpi {
namespace {

constexpr size_t kMaxNamesShown = 64;  // tensors of a response

template <typename Io, typename Data>
void RankFields(Io* io, Data& rank) {
  const auto text = [&](auto& value) { io->String(value); };
  io->Signed(rank.rank);
  io->String(rank.host);
  io->Signed(rank.clock_offset);
  io->List(rank.events.names, text);
  io->Map(rank.events.parts, [&](auto& parts) { io->List(parts, text); });
  io->List(rank.events.threads, [&](auto& thread) {
    io->String(thread.name);
    io->List(thread.events, [&](auto& event) { io->Raw(event); });
  });
  io->Unsigned(rank.events.dropped);
}

std::string Serialized(const RankEvents& rank) {
  Writer writer;
  RankFields(&writer, rank);
  return writer.Take();
}

// Events that end before this time are left out, so that at most the last `most` remain.
int64_t CutTime(const std::vector<ThreadEvents>& threads, size_t most) {
  std::vector<int64_t> ends;
  for (const ThreadEvents& thread : threads) {
    for (const Event& event : thread.events) ends.push_back(event.end);
  }
  if (ends.size() <= most) return INT64_MIN;
  const size_t last = ends.size() - most - 1;  // of the events that are left out
  std::nth_element(ends.begin(), ends.begin() + static_cast<int64_t>(last), ends.end());
  return ends[last] + 1;
}

std::string Quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", static_cast<unsigned>(c));
      out += escaped;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string Microseconds(int64_t nanoseconds) {
  char text[40];
  std::snprintf(text, sizeof text, "%.3f", static_cast<double>(nanoseconds) * 1e-3);
  return text;
}

// "16 MB"
std::string Size(uint64_t bytes) {
  double size = static_cast<double>(bytes);
  const char* const units[] = {"B", "KB", "MB", "GB"};
  int unit = 0;
  for (; size >= 1024 && unit < 3; ++unit) size /= 1024;
  char text[40];
  std::snprintf(text, sizeof text, "%.4g %s", size, units[unit]);
  return text;
}

constexpr int kStepsTrack = 0;
constexpr int kCommunicationTrack = 1;
constexpr int kInputTrack = 2;
constexpr int kFirstOtherTrack = 3;

// Writes one rank's part of the trace, whose time 0 is `zero` on rank 0's clock.
class RankWriter {
 public:
  RankWriter(const RankEvents& rank, int64_t zero, std::string* out)
      : rank_(rank), zero_(zero + rank.clock_offset), out_(out) {}

  void Write() {
    NameTrack("process_name", 0, "rank " + std::to_string(rank_.rank) + " (" + rank_.host + ")");
    WriteLine(
        "{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":" + std::to_string(rank_.rank) +
        ",\"tid\":0,\"args\":{\"sort_index\":" + std::to_string(rank_.rank) + "}}");
    CollectTensors();
    WriteSteps();
    WriteInput();
    int track = kFirstOtherTrack;
    for (const ThreadEvents& thread : rank_.events.threads) {
      const bool communication = thread.name == kCommunicationThread;
      WriteThread(thread, communication ? kCommunicationTrack : track++);
    }
  }

 private:
  void WriteLine(const std::string& json) {
    *out_ += ",\n";
    *out_ += json;
  }

  void NameTrack(const char* what, int track, const std::string& name) {
    WriteLine(std::string("{\"ph\":\"M\",\"name\":\"") + what +
              "\",\"pid\":" + std::to_string(rank_.rank) + ",\"tid\":" + std::to_string(track) +
              ",\"args\":{\"name\":" + Quoted(name) + "}}");
  }

  void BeginEvent(const char* phase, const std::string& name, const char* category, int track,
                  int64_t time, std::string* json) const {
    *json = std::string("{\"ph\":\"") + phase + "\",\"name\":" + Quoted(name) + ",\"cat\":\"" +
            category + "\",\"pid\":" + std::to_string(rank_.rank) +
            ",\"tid\":" + std::to_string(track) + ",\"ts\":" + Microseconds(time - zero_);
  }

  void WriteComplete(const std::string& name, const char* category, int track, int64_t start,
                     int64_t end, const std::string& args) {
    std::string json;
    BeginEvent("X", name, category, track, start, &json);
    WriteLine(json + ",\"dur\":" + Microseconds(end - start) + ",\"args\":{" + args + "}}");
  }

  // Collects the tensors of each response. A wait has a tensor's name and its response's number.
  void CollectTensors() {
    for (const ThreadEvents& thread : rank_.events.threads) {
      for (const Event& event : thread.events) {
        if (event.stage != Stage::kWait) continue;
        std::vector<std::string>& tensors = tensors_[event.group];
        const auto parts = rank_.events.parts.find(event.name);
        if (parts == rank_.events.parts.end()) {
          tensors.push_back(NameOf(event.name));
        } else {
          tensors.insert(tensors.end(), parts->second.begin(), parts->second.end());
        }
      }
    }
  }

  void WriteSteps() {
    const std::vector<Step> steps = FindSteps(rank_.events);
    if (steps.empty()) return;
    NameTrack("thread_name", kStepsTrack, "steps");
    for (size_t i = 0; i < steps.size(); ++i) {
      const Step& step = steps[i];
      const std::string number = "\"step\":" + std::to_string(i);
      WriteComplete("step " + std::to_string(i), "step", kStepsTrack, step.begin, step.end, number);
      if (step.begin < step.first_submit) {
        WriteComplete("until the first gradient", "step", kStepsTrack, step.begin,
                      step.first_submit, number);
      }
      WriteComplete("backward, first to last gradient", "step", kStepsTrack, step.first_submit,
                    step.last_submit, number + ",\"gradients\":" + std::to_string(step.gradients));
      if (step.last_submit < step.last_response) {
        WriteComplete("exposed communication", "step", kStepsTrack, step.last_submit,
                      step.last_response, number);
      }
    }
  }

  // Appends the events of the input track (`input`), or all others.
  static void Append(const std::vector<Event>& events, bool input, std::vector<Event>* out) {
    std::copy_if(events.begin(), events.end(), std::back_inserter(*out),
                 [input](const Event& event) { return (event.stage == Stage::kInput) == input; });
  }

  // Of two events with the same start the longer one comes first, since it contains the other.
  static void SortByStart(std::vector<Event>* events) {
    std::sort(events->begin(), events->end(), [](const Event& a, const Event& b) {
      return a.start != b.start ? a.start < b.start : a.end > b.end;
    });
  }

  // tf.data waits on several threads; their waits share one track.
  void WriteInput() {
    std::vector<Event> waits;
    for (const ThreadEvents& thread : rank_.events.threads) Append(thread.events, true, &waits);
    if (waits.empty()) return;
    SortByStart(&waits);
    NameTrack("thread_name", kInputTrack, "input");
    for (const Event& wait : waits) {
      WriteComplete(Name(wait.stage), "input", kInputTrack, wait.start, wait.end, "");
    }
  }

  void WriteThread(const ThreadEvents& thread, int track) {
    const bool communication = track == kCommunicationTrack;
    std::vector<Event> events;
    Append(thread.events, false, &events);
    if (events.empty()) return;
    SortByStart(&events);
    NameTrack("thread_name", track, communication ? "communication" : "thread " + thread.name);
    for (const Event& event : events) {
      if (event.stage == Stage::kWait) {
        WriteWait(event, track);
      } else {
        const bool response = event.stage == Stage::kResponse;
        WriteComplete(response ? NameOfResponse(event) : NameOfSpan(event), Category(event.stage),
                      track, event.start, event.end, Args(event));
      }
    }
  }

  static const char* Category(Stage stage) {
    return stage == Stage::kSubmit || stage == Stage::kApply ? "tensorflow" : "communication";
  }

  // Waits overlap, so they are asynchronous events: a begin and an end with a common id.
  void WriteWait(const Event& event, int track) {
    char id[40];
    std::snprintf(id, sizeof id, "\"0x%x%08x\"", static_cast<unsigned>(rank_.rank), ++waits_);
    for (const char* phase : {"b", "e"}) {
      std::string json;
      BeginEvent(phase, Name(event.stage), "wait", track, *phase == 'b' ? event.start : event.end,
                 &json);
      WriteLine(json + ",\"id\":" + id + ",\"args\":{" + (*phase == 'b' ? Args(event) : "") + "}}");
    }
  }

  const std::string& NameOf(uint32_t number) const {
    static const std::string* const kUnknown = new std::string("?");
    return number < rank_.events.names.size() ? rank_.events.names[number] : *kUnknown;
  }

  const std::vector<std::string>& TensorsOf(const Event& response) const {
    static const std::vector<std::string>* const kNone = new std::vector<std::string>;
    const auto it = tensors_.find(response.group);
    return it != tensors_.end() ? it->second : *kNone;
  }

  // A named kReduce event has the transport's operation as its name, such as "allgather".
  std::string NameOfSpan(const Event& event) const {
    const bool named = event.stage == Stage::kReduce && event.name != 0;
    return named ? NameOf(event.name) : Name(event.stage);
  }

  std::string NameOfResponse(const Event& event) const {
    const size_t tensors = TensorsOf(event).size();
    const std::string kind = NameOf(event.name);
    if (tensors == 0) return kind + ", " + Size(event.bytes);  // their waits were dropped
    if (tensors == 1) return kind + " " + Size(event.bytes);
    return kind + " of " + std::to_string(tensors) + " tensors, " + Size(event.bytes);
  }

  std::string Args(const Event& event) const {
    std::string args = "\"bytes\":" + std::to_string(event.bytes);
    if (event.stage == Stage::kResponse) {
      const std::vector<std::string>& tensors = TensorsOf(event);
      const size_t shown = std::min(tensors.size(), kMaxNamesShown);
      args += ",\"response\":" + std::to_string(event.group) + ",\"tensors\":[";
      for (size_t i = 0; i < shown; ++i) args += (i > 0 ? "," : "") + Quoted(tensors[i]);
      args += "]";
      if (shown < tensors.size()) {
        args += ",\"more_tensors\":" + std::to_string(tensors.size() - shown);
      }
      return args;
    }
    if (event.stage == Stage::kWait) args += ",\"response\":" + std::to_string(event.group);
    if (event.name != 0 && event.stage != Stage::kReduce)
      args += ",\"tensor\":" + Quoted(NameOf(event.name));
    return args;
  }

  const RankEvents& rank_;
  const int64_t zero_;
  std::string* const out_;
  std::unordered_map<uint32_t, std::vector<std::string>> tensors_;  // names, by response
  unsigned waits_ = 0;
};

}  // namespace

std::string Encode(RankEvents rank, size_t most_bytes) {
  std::vector<ThreadEvents> threads = std::exchange(rank.events.threads, {});
  const size_t others = Serialized(rank).size();
  const size_t left = most_bytes > others ? most_bytes - others : 0;
  const int64_t cut = CutTime(threads, left / sizeof(Event));
  for (ThreadEvents& thread : threads) {
    std::vector<Event>& events = thread.events;
    const auto kept = std::remove_if(events.begin(), events.end(),
                                     [cut](const Event& event) { return event.end < cut; });
    rank.events.dropped += static_cast<uint64_t>(events.end() - kept);
    events.erase(kept, events.end());
  }
  rank.events.threads = std::move(threads);
  return Serialized(rank);
}

bool Decode(const std::string& bytes, RankEvents* rank) {
  Reader reader(bytes);
  RankFields(&reader, *rank);
  return reader.Finished();
}

std::string FormatTrace(const std::vector<RankEvents>& ranks) {
  int64_t zero = INT64_MAX;
  uint64_t dropped = 0;
  for (const RankEvents& rank : ranks) {
    dropped += rank.events.dropped;
    for (const ThreadEvents& thread : rank.events.threads) {
      for (const Event& event : thread.events) {
        zero = std::min(zero, event.start - rank.clock_offset);
      }
    }
  }
  std::string out =
      "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"ranks\":" + std::to_string(ranks.size()) +
      ",\"events_dropped\":" + std::to_string(dropped) +
      "},\"traceEvents\":[\n{\"ph\":\"M\",\"name\":\"process_labels\",\"pid\":0,"
      "\"tid\":0,\"args\":{\"labels\":\"tensorflow.mpi\"}}";
  for (const RankEvents& rank : ranks) RankWriter(rank, zero, &out).Write();
  return out + "\n]}\n";
}

Status WriteTrace(const std::string& path, const std::vector<RankEvents>& ranks) {
  const std::string text = FormatTrace(ranks);
  std::FILE* const file = std::fopen(path.c_str(), "w");
  if (file == nullptr) {
    return Status(Code::kFailedPrecondition,
                  "cannot write the trace to " + path + ": " + std::strerror(errno));
  }
  const bool whole = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  if (std::fclose(file) == 0 && whole) return Status();
  return Status(Code::kInternal, "the trace in " + path + " is incomplete: the disk may be full");
}

}  // namespace tfmpi
