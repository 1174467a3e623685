// What this rank's script does while the ranks wait, and what it needs of them: what it says
// itself, and what its process shows.

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
  // For people: "fit() of model 'm', epoch 2"; empty: nothing is known.
  void SetDoing(const std::string& doing);
  // How many steps of that have been done; 0: it has none. Written by the script's thread alone.
  std::atomic<int64_t>* steps() { return &steps_; }

  // The script's only thread that uses the engine waits for a file of rank 0, though it knows of so
  // many posts. Said again after each look at them.
  void BeginFileWait(const std::string& file, uint64_t posts, bool has_no_gradients);
  void EndFileWait();

  // More than one thread of the script uses the engine: what one waits for says nothing.
  void SetSeveralThreads(bool several) { several_threads_ = several; }
  bool several_threads() const { return several_threads_; }

  WaitState Snapshot() const;

  // Not empty: what the script does, and what cannot go on with other ranks.
  void SetNeedsAll(const std::string& why);
  std::string needs_all() const;

  // The others have averaged a gradient while this rank had none to give (WaitState): it may give
  // no more until its variables are theirs again.
  void CountMissedGradient() { ++missed_gradients_; }
  void ClearMissedGradients() { missed_gradients_ = 0; }
  uint64_t missed_gradients() const { return missed_gradients_; }

 private:
  std::atomic<int64_t> steps_{0};
  std::atomic<bool> several_threads_{false};
  std::atomic<uint64_t> missed_gradients_{0};
  mutable std::mutex mutex_;
  std::string doing_;  // guarded by mutex_, as all below
  WaitState file_;     // its wait; kNo: none
  std::string needs_all_;
};

// Whether the process does nothing: no processor time but the communication thread's, no thread
// that could run, nothing read or written. A script that sleeps is still, too.
//
// Communication thread.
class IdleDetector {
 public:
  // Something has come or gone: the idle time starts over.
  void Reset(TimePoint now);
  // Whether it has lasted so long. To be asked often; looks a few times in a second.
  bool IsIdleFor(TimePoint now, Clock::duration patience);

 private:
  struct Usage {
    double seconds = 0;  // of processor time, but the calling thread's
    int64_t blocks = 0;  // read and written, page faults included
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
