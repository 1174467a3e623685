// The options of an engine, and its counters.

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
  // An operation that the ranks have agreed on fails the engine if it takes longer than this.
  Clock::duration collective_timeout = std::chrono::seconds(300);
  // Prints a line for people; may be null. Called on the communication thread.
  std::function<void(const std::string&)> log;
  bool stats = false;  // counts for TF_MPI_STATS; turns response_bypass off
  GpuOptions gpus;     // the executor sets its `log` and `chosen`
  // Ranks with a shared word agree on a repeated step without a message (consensus.h). In a tree,
  // rank 0 answers it without the coordinator (Negotiator::AnswerUnanimous).
  bool response_bypass = true;
  // After waiting this long for the others' votes, a rank tells the coordinator, which knows who is
  // missing and reports it. A relay holds announcements back as long, too.
  Clock::duration vote_patience = std::chrono::milliseconds(10);
  // The ranks continue without those that die. Requires a transport with a membership(); ranks do
  // not vote, and requests with GPU memory fail.
  bool shrink_on_fault = false;
  // Called when every rank has joined, on the thread that calls Join: the last use of the transport
  // before Finalize, by all ranks. Returns false if it failed.
  std::function<bool(Transport*)> at_end;
  // For tests, on the communication thread. kReadyList: rank 0 has received it from `rank`.
  // kResponseList, kVoted: this rank is about to execute it. `message`: the encoded list.
  enum class Event { kReadyList, kResponseList, kVoted };
  std::function<void(Event event, int rank, const std::string& message)> trace;
  // Starts the communication thread's loop and returns a function that waits for its end; null: on
  // a thread of its own. Tests run the loops of all ranks in turns.
  std::function<std::function<void()>(const std::function<void()>& loop)> start_loop;
};

// Counters since the start, not all read at the same moment.
struct EngineStats {
  uint64_t completed = 0;    // tensors of requests that ended with ok
  uint64_t collectives = 0;  // responses executed
  uint64_t bytes = 0;        // of the completed tensors
  uint64_t predicted = 0;    // agreements without a message
  uint64_t messages_sent = 0;
  uint64_t messages_received = 0;
  uint64_t unanimous = 0;  // rank 0: agreements on a repeated step that all ranks announced at once
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_ENGINE_OPTIONS_H_
