// The MPI transport: with pairwise_allreduce.h and ulfm.h, its own, all of the product that
// includes mpi.h. One library is compiled from it per MPI ABI (BUILD.bazel);
// python/_src/mpi/library.py chooses one.
//
// After init, the communication thread makes every MPI call, so MPI_THREAD_SERIALIZED is enough.
// Two private communicators keep control messages and data apart from each other and from the
// script's own MPI (mpi4py). Waits poll with back-off, for two reasons: a thread that spins inside
// MPI takes a core away from the model, and a blocking call could not end at its deadline.

#include <mpi.h>
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "tensorflow_patches/core/base/sizes.h"
#include "tensorflow_patches/core/base/types.h"
#include "tensorflow_patches/core/cpu/cores.h"
#include "tensorflow_patches/core/transport/mpi/pairwise_allreduce.h"
#include "tensorflow_patches/core/transport/mpi/plugin.h"
#include "tensorflow_patches/core/transport/mpi/ulfm.h"
#include "tensorflow_patches/core/transport/shm/segment.h"

namespace {

using tfmpi::Clock;
using tfmpi::DataType;
using tfmpi::Group;
using tfmpi::ReduceOp;
using tfmpi::Reduction;
using tfmpi::TimePoint;

constexpr int kControlTag = 1;
constexpr int kPairwiseTag = 2;  // two tags for each exchange
// Chunks under way at once: one is reduced while the other travels.
constexpr int kChunksInFlight = 2;

struct Outgoing {
  std::string bytes;
  MPI_Request request;
};

struct State {
  MPI_Comm control = MPI_COMM_NULL;
  Group data;
  Group rail;
  Group node;
  bool we_initialized = false;
  std::list<Outgoing> outgoing;  // a list: MPI holds the addresses until a send is done
  MPI_Message probed = MPI_MESSAGE_NULL;
  tfmpi::PairwiseAllreduce exchanges[kChunksInFlight] = {
      tfmpi::PairwiseAllreduce(kPairwiseTag), tfmpi::PairwiseAllreduce(kPairwiseTag + 2)};
  tfmpi::Ulfm ulfm;
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
// With waits, not sched_yield: on a busy core a yield gives away a whole time slice, 4 ms, while
// who sleeps for 20 us is run soon after.
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

// Before MPI_Init, which Open MPI's component btl/ofi makes a second longer: it sleeps for that
// long when it is closed, which it is where it finds no network that it can use. It serves
// one-sided communication alone, and there is none here. Whoever has chosen components, by the
// environment, a file or mpirun's options, has what they chose.
void LeaveOutOfi() {
  int index = 0, length = 0;
  MPI_T_cvar_handle chosen;
  if (MPI_T_cvar_get_index("btl", &index) != MPI_SUCCESS ||
      MPI_T_cvar_handle_alloc(index, nullptr, &chosen, &length) != MPI_SUCCESS) {
    return;
  }
  std::string names(static_cast<size_t>(length) + 1, '\0');
  if (MPI_T_cvar_read(chosen, names.data()) == MPI_SUCCESS && names[0] == '\0') {
    MPI_T_cvar_write(chosen, "^ofi");
  }
  MPI_T_cvar_handle_free(&chosen);
}

// Open MPI's MPI_Finalize begins with a barrier over all processes that there were; where some have
// died it sometimes never ends. Read at MPI_Init.
constexpr char kNoLastBarrier[] = "OMPI_MCA_async_mpi_finalize";

int StartMpi(bool goes_on, char* error) {
  State& state = GetState();
  int initialized = 0;
  MPI_Initialized(&initialized);
  int provided = MPI_THREAD_SINGLE;
  if (initialized) {
    MPI_Query_thread(&provided);
  } else {
    int ignored = 0;
    if (goes_on) setenv(kNoLastBarrier, "1", /*overwrite=*/0);
    const bool has_tools = MPI_T_init_thread(MPI_THREAD_SINGLE, &ignored) == MPI_SUCCESS;
    if (has_tools) LeaveOutOfi();
    const int result = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
    if (has_tools) MPI_T_finalize();  // what was written holds for MPI_Init if it comes before this
    TFMPI_RETURN_IF_ERROR("MPI_Init_thread", result);
    state.we_initialized = true;
  }
  if (provided < MPI_THREAD_SERIALIZED) {
    std::snprintf(error, TFMPI_ERROR_BYTES,
                  "MPI was initialised without thread support; MPI_THREAD_SERIALIZED is needed");
    return kTfMpiFailed;
  }
  return kTfMpiOk;
}

// `group` over those of `parent` that give the same `color`, in their order.
int Split(const Group& parent, int color, Group* group, char* error) {
  TFMPI_RETURN_IF_ERROR("MPI_Comm_split",
                        MPI_Comm_split(parent.comm, color, parent.rank, &group->comm));
  MPI_Comm_rank(group->comm, &group->rank);
  MPI_Comm_size(group->comm, &group->size);
  return kTfMpiOk;
}

// Who shares this rank's memory.
int SplitNodes(int ranks_per_node, char* error) {
  State& state = GetState();
  if (ranks_per_node > 0) {
    return Split(state.data, state.data.rank / ranks_per_node, &state.node, error);
  }
  TFMPI_RETURN_IF_ERROR("MPI_Comm_split_type",
                        MPI_Comm_split_type(state.data.comm, MPI_COMM_TYPE_SHARED, state.data.rank,
                                            MPI_INFO_NULL, &state.node.comm));
  MPI_Comm_rank(state.node.comm, &state.node.rank);
  MPI_Comm_size(state.node.comm, &state.node.size);
  return kTfMpiOk;
}

// "Open MPI v5.0.11", "MPICH 5.0.2": what the library says of itself, in its first words.
std::string LibraryName() {
  char version[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(version, &length);
  version[std::strcspn(version, ",\n")] = '\0';
  std::string name;
  for (const char* c = version; *c != '\0'; ++c) {
    const bool blank = *c == ' ' || *c == '\t';
    if (!blank || (!name.empty() && name.back() != ' ')) name += blank ? ' ' : *c;
  }
  const std::string label = " Version:";  // MPICH's
  if (const size_t at = name.find(label); at != std::string::npos) name.erase(at, label.size());
  return name;
}

// `parent` becomes the group of control messages, and data.comm is it already.
int UseGroup(MPI_Comm parent, TfMpiTransportInfo* info, char* error) {
  State& state = GetState();
  Group& data = state.data;
  MPI_Comm_set_errhandler(data.comm, MPI_ERRORS_RETURN);  // and of all that are split from it
  TFMPI_RETURN_IF_ERROR("MPI_Comm_dup", MPI_Comm_dup(parent, &state.control));
  MPI_Comm_set_errhandler(state.control, MPI_ERRORS_RETURN);
  MPI_Comm_rank(data.comm, &data.rank);
  MPI_Comm_size(data.comm, &data.size);
  info->rank = data.rank;
  info->size = data.size;
  std::snprintf(info->library, sizeof info->library, "%.255s", LibraryName().c_str());
  return kTfMpiOk;
}

int Init(int32_t goes_on, TfMpiTransportInfo* info, char* error) {
  if (const int result = StartMpi(goes_on != 0, error); result != kTfMpiOk) return result;
  TFMPI_RETURN_IF_ERROR("MPI_Comm_dup", MPI_Comm_dup(MPI_COMM_WORLD, &GetState().data.comm));
  return UseGroup(MPI_COMM_WORLD, info, error);
}

int MayGoOn(char* error) {
  const char* why = nullptr;
  if (!GetState().ulfm.Load()) {
    why = "this MPI has no fault tolerance (ULFM), as Open MPI 5 has";
  } else if (!tfmpi::Ulfm::IsOn()) {
    why = "the job was started without fault tolerance, as mpirun --with-ft ulfm starts it";
  }
  if (why == nullptr) {
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    return kTfMpiOk;
  }
  std::snprintf(error, TFMPI_ERROR_BYTES, "%s", why);
  return kTfMpiFailed;
}

int Disturbed() {
  const State& state = GetState();
  int found = 0;
  // MPI learns of deaths, and of what is revoked, when it is called.
  if (state.control != MPI_COMM_NULL && MPI_Iprobe(MPI_ANY_SOURCE, kControlTag, state.control,
                                                   &found, MPI_STATUS_IGNORE) != MPI_SUCCESS) {
    return 1;
  }
  for (const MPI_Comm comm : {state.data.comm, state.control, state.rail.comm, state.node.comm}) {
    if (state.ulfm.IsRevoked(comm)) return 1;
  }
  return state.ulfm.HasFailed(state.data.comm) ? 1 : 0;
}

int Agree(int32_t yes, double seconds, int32_t* all, char* error) {
  const State& state = GetState();
  if (yes == 0) {
    for (const MPI_Comm comm : {state.node.comm, state.rail.comm, state.control, state.data.comm}) {
      state.ulfm.Revoke(comm);
    }
  }
  const TimePoint deadline = DeadlineIn(seconds);
  static int flag;  // of one that times out, it may still be written
  flag = yes;
  MPI_Request request = MPI_REQUEST_NULL;
  int result = state.ulfm.Agree(state.data.comm, &flag, &request);
  Backoff backoff;
  for (int done = 0; result == MPI_SUCCESS && !done; backoff.Pause()) {
    result = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (result == MPI_SUCCESS && !done && Clock::now() >= deadline) {
      return TimedOut("the agreement of those that are left", error);
    }
  }
  *all = result == MPI_SUCCESS && flag != 0 ? 1 : 0;
  return kTfMpiOk;
}

int Regroup(TfMpiTransportInfo* info, char* error) {
  State& state = GetState();
  // MPI holds addresses until it has done with them, which nobody tells any more.
  new std::list<Outgoing>(std::move(state.outgoing));
  state.outgoing = std::list<Outgoing>();
  for (tfmpi::PairwiseAllreduce& exchange : state.exchanges) exchange.Abandon();
  state.probed = MPI_MESSAGE_NULL;
  MPI_Comm smaller = MPI_COMM_NULL;
  TFMPI_RETURN_IF_ERROR("MPIX_Comm_shrink", state.ulfm.Shrink(state.data.comm, &smaller));
  state.control = MPI_COMM_NULL;
  state.rail = state.node = Group();
  state.data.comm = smaller;
  return UseGroup(smaller, info, error);
}

int SplitRanks(int32_t ranks_per_node, TfMpiTransportInfo* info, char* error) {
  State& state = GetState();
  Group& data = state.data;
  if (const int result = SplitNodes(ranks_per_node, error); result != kTfMpiOk) return result;
  if (const int result = Split(data, state.node.rank, &state.rail, error); result != kTfMpiOk) {
    return result;
  }
  const int32_t first_on_node = state.node.rank == 0 ? 1 : 0;
  TFMPI_RETURN_IF_ERROR("MPI_Allreduce", MPI_Allreduce(&first_on_node, &info->nodes, 1, MPI_INT32_T,
                                                       MPI_SUM, data.comm));
  const int32_t sizes[] = {state.node.size, -state.node.size};
  int32_t largest[2] = {};
  TFMPI_RETURN_IF_ERROR("MPI_Allreduce",
                        MPI_Allreduce(sizes, largest, 2, MPI_INT32_T, MPI_MAX, data.comm));
  // mpirun binds each rank to cores of its own, so a rank's own mask says nothing of its peers.
  cpu_set_t mask = tfmpi::AllowedCores();
  int32_t quota = tfmpi::QuotaCores();
  TFMPI_RETURN_IF_ERROR("MPI_Allreduce", MPI_Allreduce(MPI_IN_PLACE, &mask, sizeof mask, MPI_BYTE,
                                                       MPI_BOR, state.node.comm));
  TFMPI_RETURN_IF_ERROR("MPI_Allreduce", MPI_Allreduce(MPI_IN_PLACE, &quota, 1, MPI_INT32_T,
                                                       MPI_MIN, state.node.comm));
  info->cores = tfmpi::CountCores(mask, quota);
  info->local_rank = state.node.rank;
  info->local_size = state.node.size;
  info->rails = largest[0] == -largest[1] ? 1 : 0;
  return kTfMpiOk;
}

// POSIX shared memory, not an MPI window: Open MPI's windows bring components that complain.
int MapNode(size_t bytes, size_t zeroed, void** memory, int32_t* ranks, char* error) {
  State& state = GetState();
  const Group& node = state.node;
  const int32_t rank = state.data.rank;
  TFMPI_RETURN_IF_ERROR("MPI_Allgather",
                        MPI_Allgather(&rank, 1, MPI_INT32_T, ranks, 1, MPI_INT32_T, node.comm));
  if (node.size == 1) {
    *memory = std::calloc(1, bytes);
    return kTfMpiOk;
  }
  tfmpi::SegmentId id = {};
  std::string why;
  if (node.rank == 0) *memory = tfmpi::CreateSegment(bytes, &id, &why);
  TFMPI_RETURN_IF_ERROR("MPI_Bcast", MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, node.comm));
  if (node.rank != 0) *memory = tfmpi::AttachSegment(id, bytes, &why);
  int mapped = *memory != nullptr ? 1 : 0;
  TFMPI_RETURN_IF_ERROR("MPI_Allreduce",
                        MPI_Allreduce(MPI_IN_PLACE, &mapped, 1, MPI_INT, MPI_MIN, node.comm));
  if (node.rank == 0) tfmpi::RemoveSegment(id);
  if (mapped == 0) {
    if (why.empty()) why = "another rank of the node has failed to";
    std::snprintf(error, TFMPI_ERROR_BYTES,
                  "the ranks of a node cannot share %zu bytes of memory (/dev/shm; %.100s); make "
                  "room there, or set TF_MPI_TOPOLOGY=flat, which does without",
                  bytes, why.c_str());
    return kTfMpiFailed;
  }
  madvise(*memory, bytes, MADV_DONTFORK);  // a child of this rank is none
  if (node.rank == 0) std::memset(*memory, 0, zeroed);
  TFMPI_RETURN_IF_ERROR("MPI_Barrier", MPI_Barrier(node.comm));
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
int AllreduceSmall(const Group& group, const void* in, void* out, const Reduction& reduction,
                   TimePoint deadline, char* error) {
  MPI_Request request = MPI_REQUEST_NULL;
  TFMPI_RETURN_IF_ERROR(
      "MPI_Iallreduce",
      MPI_Iallreduce(in == out ? MPI_IN_PLACE : in, out, static_cast<int>(reduction.count),
                     ToMpi(reduction.type), ToMpi(reduction.op), group.comm, &request));
  const int result = Wait(&request, deadline, "MPI_Iallreduce", error);
  if (result == kTfMpiOk) tfmpi::Scale(reduction.type, out, reduction.count, reduction.scale);
  return result;
}

// Chunks of equal size, several of them under way at once.
int AllreducePairwise(const Group& group, const char* in, char* out, const Reduction& reduction,
                      TimePoint deadline, char* error) {
  const size_t element = tfmpi::SizeOf(reduction.type);
  const size_t chunk_bytes = std::max(tfmpi::kMpiChunkBytes, tfmpi::kLeastMpiShare * group.size);
  const size_t chunks = (reduction.count * element + chunk_bytes - 1) / chunk_bytes;
  tfmpi::PairwiseAllreduce* const exchanges = GetState().exchanges;
  size_t started = 0;
  size_t ended = 0;
  Backoff backoff;
  while (ended < chunks) {
    bool moved = false;
    // In order, so that all ranks run a chunk on the same exchange.
    if (started < chunks && !exchanges[started % kChunksInFlight].busy()) {
      const size_t first = reduction.count * started / chunks;
      Reduction chunk = reduction;
      chunk.count = reduction.count * (started + 1) / chunks - first;
      TFMPI_RETURN_IF_ERROR("starting an exchange",
                            exchanges[started++ % kChunksInFlight].Start(
                                group, chunk, in + first * element, out + first * element));
      moved = true;
    }
    for (size_t i = 0; i < kChunksInFlight; ++i) {
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

Reduction ToReduction(const TfMpiReduction& terms) {
  return {terms.count, static_cast<DataType>(terms.type), static_cast<ReduceOp>(terms.op),
          terms.scale};
}

int Allreduce(int32_t over, const void* in, void* out, const TfMpiReduction* terms, double seconds,
              char* error) {
  const Group& group = over == kTfMpiRail ? GetState().rail : GetState().data;
  const Reduction reduction = ToReduction(*terms);
  const size_t bytes = reduction.count * tfmpi::SizeOf(reduction.type);
  const TimePoint deadline = DeadlineIn(seconds);
  if (group.size == 1) {
    tfmpi::Reduce(reduction, &in, 1, reduction.count, out, nullptr);
    return kTfMpiOk;
  }
  // MPI knows no sums of halves.
  if (bytes < tfmpi::kLeastMpiShare * group.size && tfmpi::IsWireForm(reduction.type)) {
    return AllreduceSmall(group, in, out, reduction, deadline, error);
  }
  return AllreducePairwise(group, static_cast<const char*>(in), static_cast<char*>(out), reduction,
                           deadline, error);
}

int PlainAllreduce(const void* in, void* out, const TfMpiReduction* terms, char* error) {
  const Reduction reduction = ToReduction(*terms);
  TFMPI_RETURN_IF_ERROR(
      "MPI_Allreduce",
      MPI_Allreduce(in == out ? MPI_IN_PLACE : in, out, static_cast<int>(reduction.count),
                    ToMpi(reduction.type), ToMpi(reduction.op), GetState().data.comm));
  return kTfMpiOk;
}

// By broadcasts in chunks: counts and displacements of MPI_Allgatherv are ints, and 2 GiB is not
// much.
int Broadcast(void* data, size_t bytes, int32_t root, double seconds, char* error) {
  State& state = GetState();
  const TimePoint deadline = DeadlineIn(seconds);
  for (size_t start = 0; start < bytes; start += tfmpi::kMpiChunkBytes) {
    MPI_Request request = MPI_REQUEST_NULL;
    TFMPI_RETURN_IF_ERROR(
        "MPI_Ibcast", MPI_Ibcast(static_cast<char*>(data) + start,
                                 static_cast<int>(std::min(tfmpi::kMpiChunkBytes, bytes - start)),
                                 MPI_BYTE, root, state.data.comm, &request));
    if (const int result = Wait(&request, deadline, "MPI_Ibcast", error); result != kTfMpiOk) {
      return result;
    }
  }
  return kTfMpiOk;
}

int AllgatherByBroadcasts(const void* in, char* out, const size_t* bytes, TimePoint deadline,
                          char* error) {
  State& state = GetState();
  for (int r = 0; r < state.data.size; out += bytes[r], ++r) {
    if (r == state.data.rank && bytes[r] != 0) std::memmove(out, in, bytes[r]);
    const double left = std::chrono::duration<double>(deadline - Clock::now()).count();
    const int result = Broadcast(out, bytes[r], r, left, error);
    if (result != kTfMpiOk) return result;
  }
  return kTfMpiOk;
}

int Allgather(const void* in, void* out, const size_t* bytes, double seconds, char* error) {
  State& state = GetState();
  const TimePoint deadline = DeadlineIn(seconds);
  std::vector<int> counts(state.data.size), offsets(state.data.size);
  size_t total = 0;
  for (int r = 0; r < state.data.size; ++r) {
    counts[r] = static_cast<int>(bytes[r]);
    offsets[r] = static_cast<int>(total);
    total += bytes[r];
  }
  if (total >= (size_t{1} << 30)) {
    return AllgatherByBroadcasts(in, static_cast<char*>(out), bytes, deadline, error);
  }
  // In place on all ranks, as MPI wants it, whether or not it is so on this one.
  char* const own = static_cast<char*>(out) + offsets[state.data.rank];
  if (in != own && bytes[state.data.rank] != 0) std::memcpy(own, in, bytes[state.data.rank]);
  MPI_Request request = MPI_REQUEST_NULL;
  TFMPI_RETURN_IF_ERROR("MPI_Iallgatherv",
                        MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_BYTE, out, counts.data(),
                                        offsets.data(), MPI_BYTE, state.data.comm, &request));
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
  for (Group* group : {&state.rail, &state.node, &state.data}) {
    if (group->comm != MPI_COMM_NULL) MPI_Comm_free(&group->comm);
  }
  if (state.we_initialized) TFMPI_RETURN_IF_ERROR("MPI_Finalize", MPI_Finalize());
  return kTfMpiOk;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const TfMpiTransport* tfmpi_transport_get(void) {
  static constexpr TfMpiTransport kTransport = {
      TFMPI_TRANSPORT_ABI, Init,      SplitRanks, MapNode,  Send,    Probe,     Receive, Allreduce,
      PlainAllreduce,      Allgather, Broadcast,  Finalize, MayGoOn, Disturbed, Agree,   Regroup};
  return &kTransport;
}
