#include "tensorflow_patches/core/engine/script_state.h"

#include <dirent.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>

#include "tensorflow_patches/core/base/thread_role.h"

namespace tfmpi {
namespace {

constexpr std::chrono::milliseconds kBetweenLooks{200};
// Share of one processor. Threads that wake up only to check a clock use less.
constexpr double kMaxShare = 0.05;

double Seconds(clockid_t clock) {
  timespec time = {};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// The state of a thread of this process as the kernel reports it: 'S' sleeps. '?': unknown, or an
// engine's communication thread (tests have several ranks in one process).
char StateOf(const char* thread) {
  char path[64], line[256];
  std::snprintf(path, sizeof path, "/proc/self/task/%.20s/stat", thread);
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path, "r"), std::fclose);
  if (file == nullptr || std::fgets(line, sizeof line, file.get()) == nullptr) return '?';
  const std::string text(line);
  const std::string engine_thread = std::string("(") + kCommunicationThread + ")";
  if (text.find(engine_thread) != std::string::npos) return '?';
  const size_t end = text.rfind(") ");  // the end of its name
  return end == std::string::npos || end + 2 >= text.size() ? '?' : text[end + 2];
}

}  // namespace

void ScriptState::SetDoing(const std::string& doing) {
  std::lock_guard<std::mutex> lock(mutex_);
  doing_ = doing;
}

void ScriptState::BeginFileWait(const std::string& file, uint64_t posts, bool has_no_gradients) {
  std::lock_guard<std::mutex> lock(mutex_);
  file_.blocked = WaitState::Blocked::kForFile;
  file_.what = file;
  file_.posts = posts;
  file_.has_no_gradients = has_no_gradients;
}

void ScriptState::EndFileWait() {
  std::lock_guard<std::mutex> lock(mutex_);
  file_ = WaitState();
}

WaitState ScriptState::Snapshot() const {
  std::lock_guard<std::mutex> lock(mutex_);
  WaitState wait_state = file_;
  wait_state.doing = doing_;
  const int64_t steps = steps_.load(std::memory_order_relaxed);
  if (!doing_.empty() && steps != 0) {
    wait_state.doing += ", after " + std::to_string(steps) + (steps == 1 ? " step" : " steps");
  }
  return wait_state;
}

void ScriptState::SetNeedsAll(const std::string& why) {
  std::lock_guard<std::mutex> lock(mutex_);
  needs_all_ = why;
}

std::string ScriptState::needs_all() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return needs_all_;
}

void IdleDetector::Reset(TimePoint now) {
  since_ = now;
  measured_ = false;
}

bool IdleDetector::IsIdleFor(TimePoint now, Clock::duration patience) {
  if (now - since_ < kBetweenLooks || !Clock::IsReal()) return false;
  const Clock::duration between = now - measured_at_;
  if (!measured_ || between >= kBetweenLooks) {
    const Usage usage = Measure();
    const double limit = kMaxShare * std::chrono::duration<double>(between).count();
    // After a long pause, other threads may have been held up like this one.
    const bool idle = measured_ && between < 5 * kBetweenLooks && usage.blocks == usage_.blocks &&
                      usage.seconds - usage_.seconds <= limit && !OtherThreadsRun();
    if (!idle) since_ = now;
    usage_ = usage;
    measured_ = true;
    measured_at_ = now;
  }
  return now - since_ >= patience;
}

IdleDetector::Usage IdleDetector::Measure() {
  Usage usage;
  usage.seconds = Seconds(CLOCK_PROCESS_CPUTIME_ID) - Seconds(CLOCK_THREAD_CPUTIME_ID);
  rusage resources = {};
  getrusage(RUSAGE_SELF, &resources);
  usage.blocks = resources.ru_inblock + resources.ru_oublock + resources.ru_majflt;
  return usage;
}

// Whether another thread is runnable or waits for a disk.
bool IdleDetector::OtherThreadsRun() {
  const std::unique_ptr<DIR, int (*)(DIR*)> threads(opendir("/proc/self/task"), closedir);
  if (threads == nullptr) return false;
  const long own = syscall(SYS_gettid);
  while (const dirent* const thread = readdir(threads.get())) {
    const long id = std::strtol(thread->d_name, nullptr, 10);
    if (id == 0 || id == own) continue;
    const char state = StateOf(thread->d_name);
    if (state == 'R' || state == 'D') return true;
  }
  return false;
}

}  // namespace tfmpi
