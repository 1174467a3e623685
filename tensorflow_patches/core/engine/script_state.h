// The state of this rank's script: what it reports about itself, and whether its process is idle.

#ifndef TFMPI_CORE_ENGINE_SCRIPT_STATE_H_
#define TFMPI_CORE_ENGINE_SCRIPT_STATE_H_

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

#include "tensorflow_patches/core/agreement/message.h"
#include "tensorflow_patches/core/base/types.h"

namespace tfmpi {

// Any thread.
class ScriptState {
 public:
  // For people: "fit() of model 'm', epoch 2"; empty: unknown.
  void SetDoing(const std::string& doing);
  // The number of steps done in what SetDoing names; 0 if it has none. Only the script's thread
  // writes it.
  std::atomic<int64_t>* steps() { return &steps_; }

  // The script's only thread that uses the engine waits for a file of rank 0 and has seen this many
  // posts (Published::posts_heard). Called again each time it has looked at new posts.
  void BeginFileWait(const std::string& file, uint64_t posts, bool has_no_gradients);
  void EndFileWait();

  // Several threads of the script use the engine, so what one of them waits for proves nothing.
  void SetSeveralThreads(bool several) { several_threads_ = several; }
  bool several_threads() const { return several_threads_; }

  WaitState Snapshot() const;

  // Not empty: what the script does, and why it cannot continue with fewer ranks.
  void SetNeedsAll(const std::string& why);
  std::string needs_all() const;

  // The others have averaged a gradient while this rank had none (WaitState): it may not contribute
  // gradients again until its variables equal theirs.
  void CountMissedGradient() { ++missed_gradients_; }
  void ClearMissedGradients() { missed_gradients_ = 0; }
  uint64_t missed_gradients() const { return missed_gradients_; }

 private:
  std::atomic<int64_t> steps_{0};
  std::atomic<bool> several_threads_{false};
  std::atomic<uint64_t> missed_gradients_{0};
  mutable std::mutex mutex_;
  std::string doing_;  // guarded by mutex_, as all below
  WaitState file_;     // its wait for a file; `blocked` is kNo if there is none
  std::string needs_all_;
};

// Whether the process does nothing: almost no processor time except the communication thread's, no
// other runnable thread, nothing read from or written to disks. A script that sleeps, or waits for
// the network, is idle, too.
//
// Communication thread.
class IdleDetector {
 public:
  // There was activity: the idle time starts over.
  void Reset(TimePoint now);
  // Whether the process has been idle for `patience`. Call it often; it samples a few times a
  // second. Always false in a Clock::World.
  bool IsIdleFor(TimePoint now, Clock::duration patience);

 private:
  struct Usage {
    double seconds = 0;  // of processor time, without the calling thread's
    int64_t blocks = 0;  // of disks, read and written, and major page faults
  };
  static Usage Measure();
  static bool OtherThreadsRun();

  TimePoint since_;
  TimePoint measured_at_;
  bool measured_ = false;
  Usage usage_;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_ENGINE_SCRIPT_STATE_H_
