// Starts MPI, finds the ranks of each node and maps their shared memory; and ends MPI.

#include <mpi.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow_patches/core/cpu/cores.h"
#include "tensorflow_patches/core/transport/mpi/mpi_state.h"
#include "tensorflow_patches/core/transport/shm/segment.h"

namespace tfmpi::mpi {
namespace {

// Excludes Open MPI's component btl/ofi; call it before MPI_Init. If that component finds no
// network that it can use, MPI_Init closes it, which takes one second. It only serves one-sided
// communication, which is not used here. If the environment, a file or mpirun's options already
// choose the components, this does nothing.
void ExcludeOfi() {
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

// An environment variable that MPI_Init reads. Without it, Open MPI's MPI_Finalize begins with a
// barrier over all initial processes, which sometimes never ends if some of them have died.
constexpr char kNoLastBarrier[] = "OMPI_MCA_async_mpi_finalize";

int StartMpi(bool shrink_on_fault, char* error) {
  State& state = GetState();
  int initialized = 0;
  MPI_Initialized(&initialized);
  int provided = MPI_THREAD_SINGLE;
  if (initialized) {
    MPI_Query_thread(&provided);
  } else {
    int ignored = 0;
    if (shrink_on_fault) setenv(kNoLastBarrier, "1", /*overwrite=*/0);
    const bool has_tools = MPI_T_init_thread(MPI_THREAD_SINGLE, &ignored) == MPI_SUCCESS;
    if (has_tools) ExcludeOfi();
    const int result = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
    if (has_tools) MPI_T_finalize();  // what was set before MPI_Init stays valid for it
    TFMPI_RETURN_IF_ERROR("MPI_Init_thread", result);
    state.we_initialized = true;
  }
  // If the script has started MPI, it may call MPI at any time, too.
  const int needed = initialized ? MPI_THREAD_MULTIPLE : MPI_THREAD_SERIALIZED;
  if (provided >= needed) return kTfMpiOk;
  std::snprintf(error, TFMPI_ERROR_BYTES, "%s",
                initialized
                    ? "the script has started MPI with less than MPI_THREAD_MULTIPLE, but a thread "
                      "of tensorflow.mpi calls MPI, too: set mpi4py.rc.thread_level = 'multiple' "
                      "before mpi4py.MPI is imported, or import tensorflow first"
                    : "this MPI library lacks MPI_THREAD_SERIALIZED, which is required: use "
                      "another one, or one that was built with thread support");
  return kTfMpiFailed;
}

// Sets *group to the ranks of `parent` with this `color`, in the same order.
int Split(const Group& parent, int color, Group* group, char* error) {
  TFMPI_RETURN_IF_ERROR("MPI_Comm_split",
                        MPI_Comm_split(parent.comm, color, parent.rank, &group->comm));
  MPI_Comm_rank(group->comm, &group->rank);
  MPI_Comm_size(group->comm, &group->size);
  return kTfMpiOk;
}

// Sets leaders[r] to the first rank of rank r's node. A node is the ranks that can share memory, or
// each `ranks_per_node` consecutive ones. Does not use MPI_COMM_TYPE_SHARED: Open MPI compares host
// names, and hangs if two hosts have the same name.
int FindLeaders(int ranks_per_node, std::vector<int>* leaders, char* error) {
  const Group& data = GetState().data;
  leaders->resize(data.size);
  if (ranks_per_node > 0) {
    for (int r = 0; r < data.size; ++r) (*leaders)[r] = r / ranks_per_node * ranks_per_node;
    return kTfMpiOk;
  }
  const SegmentPlace own = PlaceOfSegments();
  std::vector<SegmentPlace> places(data.size);
  TFMPI_RETURN_IF_ERROR("MPI_Allgather", MPI_Allgather(&own, sizeof own, MPI_BYTE, places.data(),
                                                       sizeof own, MPI_BYTE, data.comm));
  std::map<std::string, int> first;
  for (int r = 0; r < data.size; ++r) {
    const std::string place(reinterpret_cast<const char*>(&places[r]), sizeof places[r]);
    (*leaders)[r] = first.emplace(place, r).first->second;
  }
  return kTfMpiOk;
}

// The number of nodes, and whether all have the same number of ranks.
std::pair<int, bool> CountNodes(const std::vector<int>& leaders) {
  std::map<int, int> ranks;  // of each node, by leader
  for (const int leader : leaders) ++ranks[leader];
  bool even = true;
  for (const auto& [leader, count] : ranks) even = even && count == ranks.begin()->second;
  return {static_cast<int>(ranks.size()), even};
}

// "Open MPI v5.0.11", "MPICH 5.0.2": the first words of the library's own version text.
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

}  // namespace

int UseGroup(MPI_Comm parent, TfMpiTransportInfo* info, char* error) {
  State& state = GetState();
  Group& data = state.data;
  // Communicators that are split from data.comm inherit this.
  MPI_Comm_set_errhandler(data.comm, MPI_ERRORS_RETURN);
  TFMPI_RETURN_IF_ERROR("MPI_Comm_dup", MPI_Comm_dup(parent, &state.control));
  MPI_Comm_set_errhandler(state.control, MPI_ERRORS_RETURN);
  MPI_Comm_rank(data.comm, &data.rank);
  MPI_Comm_size(data.comm, &data.size);
  info->rank = data.rank;
  info->size = data.size;
  std::snprintf(info->library, sizeof info->library, "%.255s", LibraryName().c_str());
  return kTfMpiOk;
}

int Init(int32_t shrink_on_fault, TfMpiTransportInfo* info, char* error) {
  if (const int result = StartMpi(shrink_on_fault != 0, error); result != kTfMpiOk) return result;
  TFMPI_RETURN_IF_ERROR("MPI_Comm_dup", MPI_Comm_dup(MPI_COMM_WORLD, &GetState().data.comm));
  return UseGroup(MPI_COMM_WORLD, info, error);
}

int SplitRanks(int32_t ranks_per_node, TfMpiTransportInfo* info, char* error) {
  State& state = GetState();
  Group& data = state.data;
  std::vector<int> leaders;
  if (const int result = FindLeaders(ranks_per_node, &leaders, error); result != kTfMpiOk) {
    return result;
  }
  if (const int result = Split(data, leaders[data.rank], &state.node, error); result != kTfMpiOk) {
    return result;
  }
  if (const int result = Split(data, state.node.rank, &state.rail, error); result != kTfMpiOk) {
    return result;
  }
  const auto [count, even] = CountNodes(leaders);
  info->nodes = count;
  info->has_rails = even ? 1 : 0;
  // mpirun binds each rank to its own cores, so this rank's mask says nothing about its peers'.
  cpu_set_t mask = AllowedCores();
  int32_t quota = QuotaCores();
  TFMPI_RETURN_IF_ERROR("MPI_Allreduce", MPI_Allreduce(MPI_IN_PLACE, &mask, sizeof mask, MPI_BYTE,
                                                       MPI_BOR, state.node.comm));
  TFMPI_RETURN_IF_ERROR("MPI_Allreduce", MPI_Allreduce(MPI_IN_PLACE, &quota, 1, MPI_INT32_T,
                                                       MPI_MIN, state.node.comm));
  info->cores = CountCores(mask, quota);
  info->local_rank = state.node.rank;
  info->local_size = state.node.size;
  return kTfMpiOk;
}

// Uses POSIX shared memory instead of an MPI window: Open MPI's windows load components that print
// warnings.
int MapNode(size_t bytes, size_t zeroed, void** memory, int32_t* ranks, char* error) {
  State& state = GetState();
  const Group& node = state.node;
  const int32_t rank = state.data.rank;
  TFMPI_RETURN_IF_ERROR("MPI_Allgather",
                        MPI_Allgather(&rank, 1, MPI_INT32_T, ranks, 1, MPI_INT32_T, node.comm));
  if (node.size == 1) {
    *memory = std::calloc(1, bytes);
    if (*memory == nullptr) return Fail("calloc", MPI_ERR_NO_MEM, error);
    return kTfMpiOk;
  }
  SegmentId id = {};
  std::string why;
  if (node.rank == 0) *memory = CreateSegment(bytes, &id, &why);
  TFMPI_RETURN_IF_ERROR("MPI_Bcast", MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, node.comm));
  if (node.rank != 0) *memory = AttachSegment(id, bytes, &why);
  int mapped = *memory != nullptr ? 1 : 0;
  TFMPI_RETURN_IF_ERROR("MPI_Allreduce",
                        MPI_Allreduce(MPI_IN_PLACE, &mapped, 1, MPI_INT, MPI_MIN, node.comm));
  if (node.rank == 0) RemoveSegment(id);
  if (mapped == 0) {
    if (why.empty()) why = "another rank of the node failed";
    std::snprintf(error, TFMPI_ERROR_BYTES,
                  "the ranks of a node cannot share %zu bytes of memory (/dev/shm; %.100s); free "
                  "space there, or set TF_MPI_TOPOLOGY=flat, which does not need it",
                  bytes, why.c_str());
    return kTfMpiFailed;
  }
  madvise(*memory, bytes, MADV_DONTFORK);  // a child process is not a rank
  if (node.rank == 0) std::memset(*memory, 0, zeroed);
  TFMPI_RETURN_IF_ERROR("MPI_Barrier", MPI_Barrier(node.comm));
  return kTfMpiOk;
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

}  // namespace tfmpi::mpi
