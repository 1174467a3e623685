// Ranks as threads of one process, for the engine's tests; and deadlines, so that no test can hang.

#ifndef TFMPI_TESTS_CORE_SUPPORT_RANKS_H_
#define TFMPI_TESTS_CORE_SUPPORT_RANKS_H_

#include <condition_variable>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tensorflow_patches/core/engine/engine.h"
#include "tensorflow_patches/core/transport/local.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define TFMPI_SANITIZED 1
#else
#define TFMPI_SANITIZED 0
#endif

namespace tfmpi {

// Ends the process with a line on stderr. After a hang nothing can safely continue: threads still
// hold pointers into the test's buffers.
[[noreturn]] void DieOfHang(const std::string& what);

// Ends the process unless destroyed within `limit`.
class Watchdog {
 public:
  explicit Watchdog(std::chrono::seconds limit);
  ~Watchdog();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::thread thread_;
};

// Base of every test that starts threads. A test takes seconds; sanitizers and a busy machine slow
// it down.
class TimedTest : public ::testing::Test {
 private:
  Watchdog watchdog_{std::chrono::seconds(TFMPI_SANITIZED ? 200 : 50)};
};

// How long a wait that should end at once may take on a busy machine.
inline constexpr std::chrono::milliseconds kPromptly{TFMPI_SANITIZED ? 10000 : 4000};

using Ending = std::future<Status>;

// `request.done` is set here.
Ending Submit(Engine& engine, Request request, Ticket* ticket = nullptr);
// The status the request ended with.
Status Await(Ending& ending);
// "" if all ended with ok, else the first error.
std::string AwaitAll(std::vector<Ending>& endings);

Request MakeBarrier(const std::string& name);

// The usual options of a test: a small fusion buffer, and timeouts that are shorter than the
// watchdog's.
EngineOptions TestOptions();
// A buffer of TestOptions() holds this many bytes.
inline constexpr size_t kTestThreshold = 4096;

class Ranks {
 public:
  using Decorate = std::function<std::unique_ptr<Transport>(std::unique_ptr<Transport>, int rank)>;

  using OptionsOf = std::function<EngineOptions(int rank)>;

  explicit Ranks(int size, const EngineOptions& options = TestOptions(),
                 const Decorate& decorate = nullptr)
      : Ranks(
            size, [&options](int) { return options; }, decorate) {}
  Ranks(int size, const OptionsOf& options_of, const Decorate& decorate = nullptr);
  // Engines that have not joined leave.
  ~Ranks() = default;

  int size() const { return static_cast<int>(engines_.size()); }
  Engine& operator[](int rank) { return *engines_[rank]; }
  LocalGroup& group() { return group_; }

  // Runs `body` for every rank at the same time, each on its own thread, and waits for all.
  void Each(const std::function<void(int rank, Engine& engine)>& body);
  // Every rank joins; expects each to end with ok.
  void JoinAll();
  // As when the process of `rank` dies without a message.
  void Destroy(int rank) { engines_[rank].reset(); }

 private:
  LocalGroup group_;
  std::vector<std::unique_ptr<Engine>> engines_;
};

}  // namespace tfmpi

#endif  // TFMPI_TESTS_CORE_SUPPORT_RANKS_H_
