// The MPI transport: the only file that includes mpi.h. One library is compiled from it per MPI
// ABI.
//
// After init, the communication thread makes every MPI call, so MPI_THREAD_SERIALIZED is enough.
// Two private communicators keep control messages and data apart from each other and from the
// script's own MPI (mpi4py). Waits poll with back-off, for two reasons: a thread that spins inside
// MPI takes a core away from the model, and a blocking call could not end at its deadline.

#include <mpi.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "tensorflow_patches/core/transport/mpi_exchange.h"
#include "tensorflow_patches/core/transport/plugin.h"
#include "tensorflow_patches/core/types.h"

namespace {

using tfmpi::Clock;
using tfmpi::DataType;
using tfmpi::ReduceOp;
using tfmpi::TimePoint;

constexpr int kControlTag = 1;
constexpr int kExchangeTag = 2;  // two tags for each exchange
// A piece of this size stays in the cache between being reduced and being copied; a 100 MB tensor
// took 30 ms in pieces against 54 ms whole (docs/design.md, Transport).
constexpr size_t kPieceBytes = size_t{2} << 20;
// Pieces under way at once: one is reduced while the other travels.
constexpr int kPiecesInFlight = 2;
// Bytes that each rank must at least get to reduce for an exchange to be worth its messages.
constexpr size_t kLeastShare = size_t{16} << 10;

struct Outgoing {
  std::string bytes;
  MPI_Request request;
};

struct State {
  MPI_Comm control = MPI_COMM_NULL;
  MPI_Comm data = MPI_COMM_NULL;
  int rank = 0;
  int size = 1;
  bool we_initialized = false;
  std::list<Outgoing> outgoing;  // a list: MPI holds the addresses until a send is done
  MPI_Message probed = MPI_MESSAGE_NULL;
  tfmpi::Exchange exchanges[kPiecesInFlight] = {tfmpi::Exchange(kExchangeTag),
                                                tfmpi::Exchange(kExchangeTag + 2)};
};

State& GetState() {
  static State* state = new State;  // never destroyed: MPI may outlive static destruction
  return *state;
}

int Fail(const char* what, int mpi_error, char* error) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(mpi_error, text, &length);
  std::snprintf(error, TFMPI_ERROR_BYTES, "%s failed: %.400s", what, text);
  return kTfMpiFailed;
}

#define TFMPI_RETURN_IF_ERROR(what, call)                                    \
  do {                                                                       \
    const int tfmpi_result = (call);                                         \
    if (tfmpi_result != MPI_SUCCESS) return Fail(what, tfmpi_result, error); \
  } while (false)

// Peers usually arrive within microseconds, so poll hard first; then give the core to the model.
// With naps, not sched_yield: on a busy core a yield gives away a whole time slice, 4 ms, while who
// sleeps for 20 us is run soon after.
class Backoff {
 public:
  void Pause() {
    if (++polls_ <= kHardPolls) return;
    const timespec nap = {0, polls_ <= kShortNaps ? 20'000 : 100'000};
    nanosleep(&nap, nullptr);
  }

 private:
  static constexpr int kHardPolls = 100;
  static constexpr int kShortNaps = 1000;
  int polls_ = 0;
};

int TimedOut(const char* what, char* error) {
  std::snprintf(error, TFMPI_ERROR_BYTES,
                "%s did not end in time: a peer has died or does not take part", what);
  return kTfMpiTimeout;
}

int Wait(MPI_Request* request, TimePoint deadline, const char* what, char* error) {
  Backoff backoff;
  while (true) {
    int done = 0;
    TFMPI_RETURN_IF_ERROR(what, MPI_Test(request, &done, MPI_STATUS_IGNORE));
    if (done) return kTfMpiOk;
    if (Clock::now() >= deadline) return TimedOut(what, error);
    backoff.Pause();
  }
}

TimePoint DeadlineIn(double seconds) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(
                            std::chrono::duration<double>(std::min(seconds, 1e8)));
}

MPI_Datatype ToMpi(DataType type) {
  switch (type) {
    case DataType::kFloat32:
      return MPI_FLOAT;
    case DataType::kFloat64:
      return MPI_DOUBLE;
    case DataType::kInt8:
      return MPI_INT8_T;
    case DataType::kInt16:
      return MPI_INT16_T;
    case DataType::kInt32:
      return MPI_INT32_T;
    case DataType::kInt64:
      return MPI_INT64_T;
    case DataType::kUint16:
      return MPI_UINT16_T;
    case DataType::kUint32:
      return MPI_UINT32_T;
    case DataType::kUint64:
      return MPI_UINT64_T;
    default:
      return MPI_UINT8_T;
  }
}

MPI_Op ToMpi(ReduceOp op) {
  switch (op) {
    case ReduceOp::kMin:
      return MPI_MIN;
    case ReduceOp::kMax:
      return MPI_MAX;
    case ReduceOp::kProduct:
      return MPI_PROD;
    default:
      return MPI_SUM;
  }
}

int StartMpi(char* error) {
  State& state = GetState();
  int initialized = 0;
  MPI_Initialized(&initialized);
  int provided = MPI_THREAD_SINGLE;
  if (initialized) {
    MPI_Query_thread(&provided);
  } else {
    TFMPI_RETURN_IF_ERROR("MPI_Init_thread",
                          MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided));
    state.we_initialized = true;
  }
  if (provided < MPI_THREAD_SERIALIZED) {
    std::snprintf(error, TFMPI_ERROR_BYTES,
                  "MPI was initialised without thread support; MPI_THREAD_SERIALIZED is needed");
    return kTfMpiFailed;
  }
  return kTfMpiOk;
}

int Init(TfMpiTransportInfo* info, char* error) {
  State& state = GetState();
  if (const int result = StartMpi(error); result != kTfMpiOk) return result;
  TFMPI_RETURN_IF_ERROR("MPI_Comm_dup", MPI_Comm_dup(MPI_COMM_WORLD, &state.control));
  TFMPI_RETURN_IF_ERROR("MPI_Comm_dup", MPI_Comm_dup(MPI_COMM_WORLD, &state.data));
  MPI_Comm_set_errhandler(state.control, MPI_ERRORS_RETURN);
  MPI_Comm_set_errhandler(state.data, MPI_ERRORS_RETURN);
  MPI_Comm_rank(state.data, &state.rank);
  MPI_Comm_size(state.data, &state.size);
  info->rank = state.rank;
  info->size = state.size;

  MPI_Comm node = MPI_COMM_NULL;
  TFMPI_RETURN_IF_ERROR(
      "MPI_Comm_split_type",
      MPI_Comm_split_type(state.data, MPI_COMM_TYPE_SHARED, state.rank, MPI_INFO_NULL, &node));
  MPI_Comm_rank(node, &info->local_rank);
  MPI_Comm_size(node, &info->local_size);
  MPI_Comm_free(&node);
  int32_t first_on_node = info->local_rank == 0 ? 1 : 0;
  TFMPI_RETURN_IF_ERROR("MPI_Allreduce", MPI_Allreduce(&first_on_node, &info->nodes, 1, MPI_INT32_T,
                                                       MPI_SUM, state.data));

  char version[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(version, &length);
  version[std::strcspn(version, ",\n")] = '\0';
  std::snprintf(info->library, sizeof info->library, "%.255s", version);
  return kTfMpiOk;
}

// Frees the buffers of sends that are done; called often enough that none piles up.
int ReapSends(char* error) {
  std::list<Outgoing>& outgoing = GetState().outgoing;
  for (auto it = outgoing.begin(); it != outgoing.end();) {
    int done = 0;
    TFMPI_RETURN_IF_ERROR("MPI_Test", MPI_Test(&it->request, &done, MPI_STATUS_IGNORE));
    it = done ? outgoing.erase(it) : std::next(it);
  }
  return kTfMpiOk;
}

int Send(int32_t peer, const void* data, size_t bytes, char* error) {
  State& state = GetState();
  state.outgoing.push_back({std::string(static_cast<const char*>(data), bytes), MPI_REQUEST_NULL});
  Outgoing& message = state.outgoing.back();
  TFMPI_RETURN_IF_ERROR("MPI_Isend",
                        MPI_Isend(message.bytes.data(), static_cast<int>(bytes), MPI_BYTE, peer,
                                  kControlTag, state.control, &message.request));
  return ReapSends(error);
}

int Probe(int32_t* source, size_t* bytes, char* error) {
  State& state = GetState();
  *source = -1;
  if (const int result = ReapSends(error); result != kTfMpiOk) return result;
  int found = 0;
  MPI_Status status;
  TFMPI_RETURN_IF_ERROR("MPI_Improbe", MPI_Improbe(MPI_ANY_SOURCE, kControlTag, state.control,
                                                   &found, &state.probed, &status));
  if (!found) return kTfMpiOk;
  int count = 0;
  MPI_Get_count(&status, MPI_BYTE, &count);
  *source = status.MPI_SOURCE;
  *bytes = static_cast<size_t>(count);
  return kTfMpiOk;
}

int Receive(void* data, size_t bytes, char* error) {
  State& state = GetState();
  // Matched by Probe already, so this waits for bytes in flight, never for a decision of the peer.
  MPI_Request request = MPI_REQUEST_NULL;
  TFMPI_RETURN_IF_ERROR(
      "MPI_Imrecv", MPI_Imrecv(data, static_cast<int>(bytes), MPI_BYTE, &state.probed, &request));
  return Wait(&request, DeadlineIn(60), "receiving a control message", error);
}

// Small ones in one go: MPI's trees take fewer messages than an exchange.
int AllreduceSmall(const void* in, void* out, size_t count, const tfmpi::Reduction& reduction,
                   TimePoint deadline, char* error) {
  MPI_Request request = MPI_REQUEST_NULL;
  TFMPI_RETURN_IF_ERROR("MPI_Iallreduce",
                        MPI_Iallreduce(in == out ? MPI_IN_PLACE : in, out, static_cast<int>(count),
                                       reduction.type, reduction.op, reduction.comm, &request));
  return Wait(&request, deadline, "MPI_Iallreduce", error);
}

// Pieces of equal size, several of them under way at once.
int AllreduceByExchange(const char* in, char* out, size_t count, const tfmpi::Reduction& reduction,
                        TimePoint deadline, char* error) {
  const size_t piece_bytes = std::max(kPieceBytes, kLeastShare * reduction.size);
  const size_t pieces = (count * reduction.element + piece_bytes - 1) / piece_bytes;
  tfmpi::Exchange* const exchanges = GetState().exchanges;
  size_t started = 0;
  size_t ended = 0;
  Backoff backoff;
  while (ended < pieces) {
    bool moved = false;
    // In order, so that all ranks run a piece on the same exchange.
    if (started < pieces && !exchanges[started % kPiecesInFlight].busy()) {
      const size_t first = count * started / pieces;
      const size_t last = count * (started + 1) / pieces;
      const size_t offset = first * reduction.element;
      TFMPI_RETURN_IF_ERROR("starting an exchange",
                            exchanges[started++ % kPiecesInFlight].Start(
                                reduction, in + offset, out + offset, last - first));
      moved = true;
    }
    for (size_t i = 0; i < kPiecesInFlight; ++i) {
      if (!exchanges[i].busy()) continue;
      TFMPI_RETURN_IF_ERROR("an exchange", exchanges[i].Advance(&moved));
      ended += !exchanges[i].busy();
    }
    if (moved) {
      backoff = Backoff();
    } else if (Clock::now() >= deadline) {
      return TimedOut("an exchange of gradients", error);
    } else {
      backoff.Pause();
    }
  }
  return kTfMpiOk;
}

int Allreduce(const void* in, void* out, size_t count, int32_t type, int32_t op, double seconds,
              char* error) {
  State& state = GetState();
  const DataType data_type = static_cast<DataType>(type);
  const tfmpi::Reduction reduction = {state.data,
                                      state.rank,
                                      state.size,
                                      ToMpi(data_type),
                                      ToMpi(static_cast<ReduceOp>(op)),
                                      tfmpi::SizeOf(data_type)};
  const TimePoint deadline = DeadlineIn(seconds);
  if (state.size == 1) {
    if (in != out) std::memcpy(out, in, count * reduction.element);
    return kTfMpiOk;
  }
  if (count * reduction.element < kLeastShare * state.size) {
    return AllreduceSmall(in, out, count, reduction, deadline, error);
  }
  return AllreduceByExchange(static_cast<const char*>(in), static_cast<char*>(out), count,
                             reduction, deadline, error);
}

// By broadcasts in pieces: counts and displacements of MPI_Allgatherv are ints, and 2 GiB is not
// much.
int Broadcast(void* data, size_t bytes, int32_t root, double seconds, char* error) {
  State& state = GetState();
  const TimePoint deadline = DeadlineIn(seconds);
  for (size_t start = 0; start < bytes; start += kPieceBytes) {
    MPI_Request request = MPI_REQUEST_NULL;
    TFMPI_RETURN_IF_ERROR(
        "MPI_Ibcast", MPI_Ibcast(static_cast<char*>(data) + start,
                                 static_cast<int>(std::min(kPieceBytes, bytes - start)), MPI_BYTE,
                                 root, state.data, &request));
    if (const int result = Wait(&request, deadline, "MPI_Ibcast", error); result != kTfMpiOk) {
      return result;
    }
  }
  return kTfMpiOk;
}

int AllgatherByBroadcasts(const void* in, char* out, const size_t* bytes, TimePoint deadline,
                          char* error) {
  State& state = GetState();
  for (int r = 0; r < state.size; out += bytes[r], ++r) {
    if (r == state.rank && bytes[r] != 0) std::memmove(out, in, bytes[r]);
    const double left = std::chrono::duration<double>(deadline - Clock::now()).count();
    const int result = Broadcast(out, bytes[r], r, left, error);
    if (result != kTfMpiOk) return result;
  }
  return kTfMpiOk;
}

int Allgather(const void* in, void* out, const size_t* bytes, double seconds, char* error) {
  State& state = GetState();
  const TimePoint deadline = DeadlineIn(seconds);
  std::vector<int> counts(state.size), offsets(state.size);
  size_t total = 0;
  for (int r = 0; r < state.size; ++r) {
    counts[r] = static_cast<int>(bytes[r]);
    offsets[r] = static_cast<int>(total);
    total += bytes[r];
  }
  if (total >= (size_t{1} << 30)) {
    return AllgatherByBroadcasts(in, static_cast<char*>(out), bytes, deadline, error);
  }
  MPI_Request request = MPI_REQUEST_NULL;
  TFMPI_RETURN_IF_ERROR("MPI_Iallgatherv",
                        MPI_Iallgatherv(in, counts[state.rank], MPI_BYTE, out, counts.data(),
                                        offsets.data(), MPI_BYTE, state.data, &request));
  return Wait(&request, deadline, "MPI_Iallgatherv", error);
}

int Finalize(char* error) {
  State& state = GetState();
  const TimePoint deadline = DeadlineIn(30);
  for (Outgoing& message : state.outgoing) {
    const int result = Wait(&message.request, deadline, "sending the last message", error);
    if (result != kTfMpiOk) return result;
  }
  state.outgoing.clear();
  MPI_Comm_free(&state.control);
  MPI_Comm_free(&state.data);
  if (state.we_initialized) TFMPI_RETURN_IF_ERROR("MPI_Finalize", MPI_Finalize());
  return kTfMpiOk;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const TfMpiTransport* tfmpi_transport_get(void) {
  static constexpr TfMpiTransport kTransport = {
      TFMPI_TRANSPORT_ABI, Init, Send, Probe, Receive, Allreduce, Allgather, Broadcast, Finalize};
  return &kTransport;
}
