// The recorder, what is derived from its events, and how the ranks combine theirs.

#include "tensorflow_patches/core/observability/timeline.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <numeric>
#include <sstream>

#include "gtest/gtest.h"
#include "tensorflow_patches/core/observability/observe.h"
#include "tensorflow_patches/core/observability/trace_file.h"
#include "tensorflow_patches/core/observability/trace_steps.h"
#include "tests/core/support/decorated.h"
#include "tests/core/support/job.h"
#include "tests/core/support/ranks.h"

namespace tfmpi {
namespace {

using std::chrono::milliseconds;

// The events of one name, which each test has for itself: the recorder is the process's.
std::vector<Event> EventsNamed(const Events& events, const std::string& name) {
  std::vector<Event> found;
  for (const ThreadEvents& thread : events.threads) {
    for (const Event& event : thread.events) {
      if (events.names[event.name] == name) found.push_back(event);
    }
  }
  return found;
}

class TimelineTest : public TimedTest {
 protected:
  ~TimelineTest() override { StartRecording(0); }
};

TEST_F(TimelineTest, RecordsNothingUntilItIsTold) {
  { const Span span(Stage::kPack, "off"); }
  StartRecording(kRecordTotals);
  const double before = SecondsIn(Stage::kPack);
  {
    const Span span(Stage::kPack, "totals only");
    std::this_thread::sleep_for(milliseconds(2));
  }
  EXPECT_GE(SecondsIn(Stage::kPack) - before, 0.002);
  const Events events = CopyEvents();
  EXPECT_TRUE(EventsNamed(events, "off").empty());
  EXPECT_TRUE(EventsNamed(events, "totals only").empty());
}

TEST_F(TimelineTest, ThreadsRecordAtOnceAndSpansNest) {
  StartRecording(kRecordEvents);
  constexpr int kThreads = 4, kSpans = 500;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < kSpans; ++i) {
        const Span outer(Stage::kResponse, "outer", 8, t + 1);
        const Span inner(Stage::kReduce, "inner", 4);
      }
    });
  }
  for (int i = 0; i < 20; ++i) CopyEvents();  // meanwhile
  for (std::thread& thread : threads) thread.join();
  const Events events = CopyEvents();
  EXPECT_EQ(EventsNamed(events, "outer").size(), size_t{kThreads} * kSpans);
  for (const ThreadEvents& thread : events.threads) {
    for (size_t i = 0; i + 1 < thread.events.size(); i += 2) {
      const Event& inner = thread.events[i];
      const Event& outer = thread.events[i + 1];
      if (events.names[inner.name] != "inner") break;  // of another test
      EXPECT_LE(outer.start, inner.start);
      EXPECT_LE(inner.start, inner.end);
      EXPECT_LE(inner.end, outer.end);
      EXPECT_EQ(outer.bytes, 8u);
    }
  }
}

Event At(Stage stage, uint32_t name, uint32_t group, int64_t start, int64_t end) {
  return {start, end, 100, name, group, stage};
}

// Two steps of a rank: "b" is reduced while "a" is still computed.
Events TwoSteps() {
  Events events;
  events.names = {"", "a \"quoted\"", "b", "allreduce"};
  events.parts = {{2, {"b1", "b2", "b3"}}};
  ThreadEvents compute{"tf_Compute", {}}, communication{"tf_mpi_comm", {}};
  for (uint32_t step = 0; step < 2; ++step) {
    const int64_t t = 1000 * step;
    const uint32_t first = 2 * step + 1, second = first + 1;
    compute.events.push_back(At(Stage::kSubmit, 2, 1, t + 100, t + 101));
    compute.events.push_back(At(Stage::kSubmit, 1, 1, t + 400, t + 401));
    compute.events.push_back(At(Stage::kApply, 1, 0, t + 700, t + 800));
    communication.events.push_back(At(Stage::kWait, 2, first, t + 100, t + 150));
    communication.events.push_back(At(Stage::kReduce, 0, 0, t + 160, t + 290));
    communication.events.push_back(At(Stage::kResponse, 3, first, t + 150, t + 300));
    communication.events.push_back(At(Stage::kWait, 1, second, t + 400, t + 450));
    communication.events.push_back(At(Stage::kResponse, 3, second, t + 450, t + 600));
  }
  events.threads = {compute, communication};
  return events;
}

TEST_F(TimelineTest, AStepEndsWhereAGradientComesAgain) {
  const std::vector<Step> steps = FindSteps(TwoSteps());
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0].begin, 100);
  EXPECT_EQ(steps[0].first_submit, 100);
  EXPECT_EQ(steps[0].last_submit, 400);
  EXPECT_EQ(steps[0].last_response, 600);
  EXPECT_EQ(steps[0].end, 800);
  EXPECT_EQ(steps[0].gradients, 4u);
  EXPECT_EQ(steps[1].begin, 800);
  EXPECT_EQ(steps[1].end, 1800);
}

// Sorted.
std::vector<int64_t> Ends(const Events& events) {
  std::vector<int64_t> ends;
  for (const ThreadEvents& thread : events.threads) {
    for (const Event& event : thread.events) ends.push_back(event.end);
  }
  std::sort(ends.begin(), ends.end());
  return ends;
}

TEST_F(TimelineTest, EventsTravelAndTheFirstAreCut) {
  const RankEvents rank = {3, "node7", -5, TwoSteps()};
  RankEvents copy;
  ASSERT_TRUE(Decode(Encode(rank, size_t{1} << 20), &copy));
  EXPECT_EQ(copy.rank, 3);
  EXPECT_EQ(copy.host, "node7");
  EXPECT_EQ(copy.clock_offset, -5);
  EXPECT_EQ(copy.events.names, rank.events.names);
  EXPECT_EQ(FormatTrace({copy}), FormatTrace({rank}));
  RankEvents cut;
  const std::string bytes = Encode(rank, 600);
  ASSERT_TRUE(Decode(bytes, &cut));
  std::vector<int64_t> kept = Ends(cut.events), all = Ends(rank.events);
  ASSERT_GT(kept.size(), 4u);
  ASSERT_LT(kept.size(), all.size());
  EXPECT_EQ(cut.events.dropped, all.size() - kept.size());
  all.erase(all.begin(), all.end() - static_cast<int64_t>(kept.size()));
  EXPECT_EQ(kept, all);
  for (size_t length = 0; length < bytes.size(); length += 7) {
    RankEvents broken;
    EXPECT_FALSE(Decode(bytes.substr(0, length), &broken)) << length;
  }
}

TEST_F(TimelineTest, ATraceIsOnRankZerosClock) {
  RankEvents first = {0, "n", 0, TwoSteps()};
  RankEvents second = {1, "m", 5000, TwoSteps()};
  for (ThreadEvents& thread : second.events.threads) {
    for (Event& event : thread.events) event.start += 5000, event.end += 5000;
  }
  const std::string trace = FormatTrace({first, second});
  for (const char* pid : {"0", "1"}) {
    const std::string line = std::string("\"cat\":\"communication\",\"pid\":") + pid +
                             ",\"tid\":1,\"ts\":0.050,\"dur\":0.150";
    EXPECT_NE(trace.find(line), std::string::npos) << trace;
  }
  EXPECT_NE(trace.find("\"a \\\"quoted\\\"\""), std::string::npos);
  EXPECT_NE(trace.find("\"tensors\":[\"b1\",\"b2\",\"b3\"]"), std::string::npos);
}

TEST_F(TimelineTest, AResponseIsNamedByWhatIsKnownOfIt) {
  Events events = TwoSteps();
  std::vector<Event>& communication = events.threads[1].events;
  communication.push_back(At(Stage::kResponse, 3, 99, 1900, 1950));  // its waits were dropped
  communication.push_back(At(Stage::kReduce, 3, 99, 1910, 1940));
  const std::string trace = FormatTrace({{0, "n", 0, events}});
  for (const char* name : {"\"allreduce of 3 tensors, 100 B\"", "\"allreduce 100 B\"",
                           "\"allreduce, 100 B\"", "\"allreduce\""}) {
    EXPECT_NE(trace.find(name), std::string::npos) << name << " in " << trace;
  }
  EXPECT_EQ(trace.find(" of 0 tensors"), std::string::npos);
}

// tf.data asks for batches on whatever thread of its own is free.
TEST_F(TimelineTest, WaitsForInputAreOneTrack) {
  Events events = TwoSteps();
  ThreadEvents other{"tf_data", {At(Stage::kInput, 0, 0, 900, 990)}};
  events.threads[0].events.push_back(At(Stage::kInput, 0, 0, 50, 90));
  events.threads.insert(events.threads.begin(), other);
  const std::string trace = FormatTrace({{0, "n", 0, events}});
  const std::string wait = "{\"ph\":\"X\",\"name\":\"wait for input\",\"cat\":\"input\",";
  const size_t first = trace.find(wait + "\"pid\":0,\"tid\":2,\"ts\":0.000,\"dur\":0.040");
  const size_t second = trace.find(wait + "\"pid\":0,\"tid\":2,\"ts\":0.850,\"dur\":0.090");
  EXPECT_LT(first, second) << trace;
  EXPECT_NE(second, std::string::npos) << trace;
  EXPECT_EQ(trace.find(wait, second + 1), std::string::npos);
  EXPECT_NE(trace.find("\"tid\":2,\"args\":{\"name\":\"input\"}"), std::string::npos);
  EXPECT_EQ(trace.find("thread tf_data"), std::string::npos);  // it has nothing else to show
}

TEST_F(TimelineTest, ClocksAreComparedThroughMessages) {
  constexpr int kRanks = 4;
  LocalGroup group(kRanks);
  std::vector<int64_t> offsets(kRanks, 1);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      const std::unique_ptr<Transport> transport = group.CreateTransport(rank);
      const auto now = [rank] {
        return std::chrono::nanoseconds(Clock::now().time_since_epoch()).count() +
               rank * int64_t{1'000'000'000};
      };
      EXPECT_TRUE(MeasureClockOffset(transport.get(), now, &offsets[rank]).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(offsets[0], 0);
  for (int rank = 1; rank < kRanks; ++rank) {
    EXPECT_NEAR(static_cast<double>(offsets[rank]), rank * 1e9, 50e6) << rank;
  }
}

// A thousand times as fast.
class FastWorld final : public Clock::World {
 public:
  Clock::time_point Now() override {
    const Clock::time_point now = std::chrono::steady_clock::now();
    return begin_ + (now - begin_) * 1000;
  }
  void Sleep(Clock::duration time) override { std::this_thread::sleep_for(time / 1000); }
  void Relax() override {}
  void WaitForChange(const std::atomic<uint32_t>&, uint32_t, Clock::duration limit) override {
    Sleep(limit);
  }

 private:
  const Clock::time_point begin_ = std::chrono::steady_clock::now();
};

TEST_F(TimelineTest, ARankThatDoesNotCompareItsClockIsAnError) {
  FastWorld world;
  Clock::Use(&world);
  LocalGroup group(2);
  int64_t offset = 0;
  const Status status = MeasureClockOffset(
      group.CreateTransport(0).get(), [] { return int64_t{0}; }, &offset);
  Clock::Use(nullptr);
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(status.message(), "a rank did not answer when the clocks were compared");
}

TEST_F(TimelineTest, ALongPathIsNotCut) {
  Observation observation;
  observation.timeline = std::string(5000, 'p');
  observation.stats = true;
  ASSERT_TRUE(StartObserving(LocalGroup(1).CreateTransport(0).get(), &observation).ok());
  EXPECT_EQ(observation.timeline, std::string(5000, 'p'));
  EXPECT_TRUE(observation.stats);
}

// The threads that may have held a lock do not exist there.
TEST_F(TimelineTest, AForkedChildRecordsNothing) {
  StartRecording(kRecordEvents);
  const pid_t child = fork();
  if (child == 0) _exit(static_cast<int>(Recording()));
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(Recording(), kRecordEvents);
}

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST_F(TimelineTest, ATraceThatCannotBeWrittenIsAnError) {
  const Status status = WriteTrace("/nowhere/trace.json", {});
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_EQ(status.message(),
            "cannot write the trace to /nowhere/trace.json: No such file or directory");
}

// Ranks gather when all have joined, also if one joined long before the others.
TEST_F(TimelineTest, RanksGatherWhenAllHaveJoined) {
  const std::string path = ::testing::TempDir() + "/timeline_test.json";
  std::remove(path.c_str());
  Observation observation;
  observation.timeline = path;
  observation.stats = true;
  StartRecording(kRecordEvents | kRecordTotals);
  std::vector<RankStats> all;
  EngineOptions options = TestOptions();
  options.stats = true;
  std::mutex mutex;
  options.at_end = [&](Transport* transport) {
    RankStats own;
    own.steps = 10 + static_cast<uint64_t>(transport->topology().rank);
    std::vector<RankStats> gathered;
    EXPECT_TRUE(Gather(transport, observation, own, &gathered).ok());
    std::lock_guard<std::mutex> lock(mutex);
    if (transport->topology().rank == 0) all = gathered;
    return true;
  };
  {
    Ranks ranks(3, options);
    ranks.Each([](int rank, Engine& engine) {
      for (int step = 0; step < 1 + rank; ++step) {
        float value = 1;
        const Job job = {"gathered", DataType::kFloat32, ReduceOp::kAverage, 1, step};
        Ending ending = Submit(engine, MakeRequest(job, &value, &value));
        EXPECT_TRUE(Await(ending).ok());
      }
      EXPECT_TRUE(engine.Join().ok());
      EXPECT_EQ(engine.FinishStats().steps, 1u + rank);
    });
  }
  ASSERT_EQ(all.size(), 3u);
  for (size_t rank = 0; rank < 3; ++rank) EXPECT_EQ(all[rank].steps, 10 + rank);
  const std::string trace = ReadAll(path);
  for (const char* process : {"\"rank 0 (", "\"rank 1 (", "\"rank 2 (", "gathered"}) {
    EXPECT_NE(trace.find(process), std::string::npos) << process;
  }
  std::remove(path.c_str());
}

// Notes how many bytes a rank receives at most in one operation.
class Noting : public Decorated {
 public:
  Noting(std::unique_ptr<Transport> next, size_t* most) : Decorated(std::move(next)), most_(most) {}
  Status Allgather(const void* in, void* out, const std::vector<size_t>& bytes,
                   TimePoint deadline) override {
    *most_ = std::max(*most_, std::accumulate(bytes.begin(), bytes.end(), size_t{0}));
    return Decorated::Allgather(in, out, bytes, deadline);
  }
  Status Broadcast(void* data, size_t bytes, int root, TimePoint deadline) override {
    *most_ = std::max(*most_, bytes);
    return Decorated::Broadcast(data, bytes, root, deadline);
  }

 private:
  size_t* const most_;
};

TEST_F(TimelineTest, NoRankReceivesTheEventsOfAllAtOnce) {
  constexpr int kRanks = 4;
  const std::string path = ::testing::TempDir() + "/timeline_test_once.json";
  Observation observation;
  observation.timeline = path;
  StartRecording(kRecordEvents);
  for (int i = 0; i < 1000; ++i) {
    const Span span(Stage::kPack, "gathered once");
  }
  const size_t own = Encode({0, "", 0, CopyEvents()}, size_t{64} << 20).size();
  LocalGroup group(kRanks);
  std::vector<size_t> most(kRanks, 0);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      Noting transport(group.CreateTransport(rank), &most[rank]);
      std::vector<RankStats> none;
      EXPECT_EQ(Gather(&transport, observation, RankStats(), &none).message(), "");
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const size_t bytes : most) {
    EXPECT_GT(bytes, own / 2);
    EXPECT_LT(bytes, own * 2);
  }
  const std::string trace = ReadAll(path);
  for (const char* process : {"\"rank 0 (", "\"rank 3 ("}) {
    EXPECT_NE(trace.find(process), std::string::npos) << process;
  }
  std::remove(path.c_str());
}

TEST_F(TimelineTest, ARankOnItsOwnNamesItsFile) {
  Observation observation;
  std::string path;
  observation.timeline = ::testing::TempDir() + "/own.trace.json";
  ASSERT_TRUE(WriteOwnTimeline({2, 4, 2, 4, 1}, observation, &path).ok());
  EXPECT_EQ(path, ::testing::TempDir() + "/own.trace.rank2.json");
  EXPECT_NE(ReadAll(path).find("\"rank 2 ("), std::string::npos);
  std::remove(path.c_str());
  observation.timeline = ::testing::TempDir() + "/no.folder/trace";
  EXPECT_FALSE(WriteOwnTimeline({2, 4, 2, 4, 1}, observation, &path).ok());
  EXPECT_EQ(path, ::testing::TempDir() + "/no.folder/trace.rank2");
}

// The last three fill the recorder.
TEST_F(TimelineTest, TheLastEventsAreKept) {
  StartRecording(kRecordEvents);
  { const Span span(Stage::kPack, "early"); }
  const uint64_t before = CopyEvents().dropped;
  for (uint64_t i = 0; i < kMaxEvents; ++i) const Span span(Stage::kPack, "many");
  { const Span span(Stage::kPack, "late"); }
  // A thread that is there for the first time has its events kept, and is no reason to lose more.
  std::thread([] { const Span span(Stage::kPack, "another thread"); }).join();
  const Events events = CopyEvents();
  EXPECT_TRUE(EventsNamed(events, "early").empty());
  EXPECT_EQ(EventsNamed(events, "late").size(), 1u);
  EXPECT_EQ(EventsNamed(events, "another thread").size(), 1u);
  const size_t many = EventsNamed(events, "many").size();
  EXPECT_LE(many, kMaxEvents);
  EXPECT_GE(many, kMaxEvents - 4096);
  EXPECT_GE(events.dropped - before, kMaxEvents - many);
}

// As those of unnamed collectives, which are numbered.
#if !TFMPI_SANITIZED  // one thread, and 15 s there
TEST_F(TimelineTest, NamesOfDroppedEventsAreForgotten) {
  StartRecording(kRecordEvents);
  RecordParts("part 0", {"first", "second"});
  const uint64_t more = 2 * kMaxEvents;
  for (uint64_t i = 0; i < more; ++i) {
    const Span span(Stage::kPack, "part " + std::to_string(i));
    const Span common(Stage::kReduce, "common");
  }
  const Events events = CopyEvents();
  EXPECT_LE(events.names.size(), kMaxEvents);
  EXPECT_GT(EventsNamed(events, "common").size(), kMaxEvents / 4);
  EXPECT_EQ(EventsNamed(events, "part " + std::to_string(more - 1)).size(), 1u);
  EXPECT_TRUE(EventsNamed(events, "part 0").empty());
  EXPECT_EQ(std::count(events.names.begin(), events.names.end(), "?"), 0);
}
#endif

TEST_F(TimelineTest, ThreadsRecordWhileTheOldestAreDropped) {
  StartRecording(kRecordEvents);
  constexpr int kThreads = 4, kSpans = static_cast<int>(kMaxEvents) / 3;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < kSpans; ++i) {
        const Span span(Stage::kReduce, "thread " + std::to_string(t) + std::to_string(i % 50));
      }
    });
  }
  for (int i = 0; i < 10; ++i) CopyEvents();  // meanwhile
  for (std::thread& thread : threads) thread.join();
  size_t kept = 0;
  for (const ThreadEvents& thread : CopyEvents().threads) kept += thread.events.size();
  EXPECT_LE(kept, kMaxEvents);
  EXPECT_GE(kept, kMaxEvents - 8 * 1024);
}

}  // namespace
}  // namespace tfmpi
