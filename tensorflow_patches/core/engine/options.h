// What an engine is told, and what it counts.

#ifndef TFMPI_CORE_ENGINE_OPTIONS_H_
#define TFMPI_CORE_ENGINE_OPTIONS_H_

#include <functional>
#include <string>

#include "tensorflow_patches/core/agreement/coordinator.h"
#include "tensorflow_patches/core/base/clock.h"
#include "tensorflow_patches/core/gpu/gpu_options.h"
#include "tensorflow_patches/core/transport/transport.h"

namespace tfmpi {

struct EngineOptions {
  CoordinatorOptions coordinator;
  // A collective that all ranks agreed to start, and that has not ended by then, fails the engine.
  Clock::duration collective_timeout = std::chrono::seconds(300);
  // A line for people, on the communication thread.
  std::function<void(const std::string&)> log;
  bool stats = false;  // counts for TF_MPI_STATS
  GpuOptions gpus;     // its `log` is this one's
  // Ranks that share a word agree on a repeated step without a message (consensus.h).
  bool response_bypass = true;
  // After so long a wait for the others' votes the coordinator is told, which knows who is missing,
  // and says so.
  Clock::duration vote_patience = std::chrono::milliseconds(10);
  // The ranks go on without those that die; the transport has a membership(). There are no votes,
  // and nothing on GPUs.
  bool shrink_on_fault = false;
  // When every rank has joined, on the thread that calls Join: the last use of the transport, by
  // all ranks alike. False: it has failed.
  std::function<bool(Transport*)> at_end;
  // For tests, on the communication thread: what rank 0 has heard of `rank`, a ready list; what
  // this rank is about to do, a response list that it was told, or that all have voted for.
  enum class Event { kReadyList, kResponseList, kVoted };
  std::function<void(Event event, int rank, const std::string& message)> trace;
  // Runs the communication thread's loop, and returns what waits for its end; null: on a thread of
  // its own. Tests run the loops of all ranks in turns.
  std::function<std::function<void()>(const std::function<void()>& loop)> start_loop;
};

// Counts since start; each is exact, together they are a snapshot.
struct EngineStats {
  uint64_t completed = 0;    // tensors of requests that ended well
  uint64_t collectives = 0;  // data operations on the transport
  uint64_t bytes = 0;        // of these requests' tensors
  uint64_t predicted = 0;    // agreements without a message
  uint64_t messages_sent = 0;
  uint64_t messages_received = 0;
  uint64_t unanimous = 0;  // rank 0: agreements on what all ranks announced together, as before
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_ENGINE_OPTIONS_H_
