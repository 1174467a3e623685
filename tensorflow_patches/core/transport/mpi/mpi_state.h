// The state of the MPI transport, and functions that all of its files use.

#ifndef TFMPI_CORE_TRANSPORT_MPI_MPI_STATE_H_
#define TFMPI_CORE_TRANSPORT_MPI_MPI_STATE_H_

#include <mpi.h>
#include <time.h>

#include <list>
#include <string>
#include <vector>

#include "tensorflow_patches/core/base/types.h"
#include "tensorflow_patches/core/transport/mpi/pairwise_allreduce.h"
#include "tensorflow_patches/core/transport/mpi/plugin.h"
#include "tensorflow_patches/core/transport/mpi/ulfm.h"

namespace tfmpi::mpi {

constexpr int kControlTag = 1;
constexpr int kPairwiseTag = 2;  // two tags for each exchange
constexpr int kLaneTag = 6;      // one for each lane
// Chunks in flight: one is reduced while the other is sent.
constexpr int kChunksInFlight = 2;

// A control message that is being sent.
struct Outgoing {
  std::string bytes;
  MPI_Request request;
};

struct State {
  MPI_Comm control = MPI_COMM_NULL;  // all ranks, for control messages
  Group data;                        // all ranks
  Group rail;
  Group node;
  bool we_initialized = false;
  std::list<Outgoing> outgoing;  // a list: MPI keeps the addresses until a send is complete
  MPI_Message probed = MPI_MESSAGE_NULL;  // the message to receive next
  tfmpi::PairwiseAllreduce exchanges[kChunksInFlight] = {
      tfmpi::PairwiseAllreduce(kPairwiseTag), tfmpi::PairwiseAllreduce(kPairwiseTag + 2)};
  std::vector<MPI_Request> lanes[TFMPI_LANES];  // the exchanges of GPU memory
  tfmpi::Ulfm ulfm;
};

// One per process. Only for the thread that may call MPI (plugin.h).
State& GetState();

// Writes "`what` failed: " and MPI's error text to `error`, which has TFMPI_ERROR_BYTES.
int Fail(const char* what, int mpi_error, char* error);

#define TFMPI_RETURN_IF_ERROR(what, call)                                    \
  do {                                                                       \
    const int tfmpi_result = (call);                                         \
    if (tfmpi_result != MPI_SUCCESS) return Fail(what, tfmpi_result, error); \
  } while (false)

// A pause between polls. Peers usually arrive within microseconds, so the first pauses are empty;
// later ones leave the core to the model. They sleep rather than call sched_yield: on a busy core a
// yield costs a whole time slice of 4 ms, whereas a thread that sleeps for 20 us runs again soon.
class Backoff {
 public:
  void Pause() {
    if (++polls_ <= kHardPolls) return;
    const timespec wait = {0, polls_ <= kShortWaits ? 20'000 : 100'000};
    nanosleep(&wait, nullptr);
  }

 private:
  static constexpr int kHardPolls = 100;
  static constexpr int kShortWaits = 1000;
  int polls_ = 0;
};

int TimedOut(const char* what, char* error);
// Waits until `request` is complete; after the deadline returns kTfMpiTimeout and leaves it active.
int Wait(MPI_Request* request, TimePoint deadline, const char* what, char* error);
TimePoint DeadlineIn(double seconds);

// The functions of TfMpiTransport (plugin.h has their contracts), by file.

// mpi_start.cc
int Init(int32_t shrink_on_fault, TfMpiTransportInfo* info, char* error);
int SplitRanks(int32_t ranks_per_node, TfMpiTransportInfo* info, char* error);
int MapNode(size_t bytes, size_t zeroed, void** memory, int32_t* ranks, char* error);
int Finalize(char* error);
// Call it once `data.comm` is set: duplicates `parent` for control messages, and sets the rest of
// `data` and the `info` of plugin.h's init.
int UseGroup(MPI_Comm parent, TfMpiTransportInfo* info, char* error);

// mpi_messages.cc
int Send(int32_t peer, const void* data, size_t bytes, char* error);
int Probe(int32_t* source, size_t* bytes, char* error);
int Receive(void* data, size_t bytes, char* error);

// mpi_collectives.cc
int Allreduce(int32_t over, const void* in, void* out, const TfMpiReduction* terms, double seconds,
              char* error);
int PlainAllreduce(const void* in, void* out, const TfMpiReduction* terms, double seconds,
                   char* error);
int Allgather(const void* in, void* out, const size_t* bytes, double seconds, char* error);
int Broadcast(void* data, size_t bytes, int32_t root, double seconds, char* error);

// mpi_gpu.cc
int TakesGpuMemory();
int StartExchange(int32_t lane, const TfMpiPart* send, const TfMpiPart* receive, char* error);
int TestExchange(int32_t lane, int32_t* ended, char* error);

// mpi_survivors.cc
int CanShrink(char* error);
int HasFailedRank();
int Agree(int32_t yes, double seconds, int32_t* all, char* error);
int Regroup(TfMpiTransportInfo* info, char* error);

}  // namespace tfmpi::mpi

#endif  // TFMPI_CORE_TRANSPORT_MPI_MPI_STATE_H_
