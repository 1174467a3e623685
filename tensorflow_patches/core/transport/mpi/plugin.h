// The C interface of a transport in its own library, loaded when averaging is on.
//
// It names no MPI type, so one core works with every MPI: each MPI ABI has one small library that
// exports `tfmpi_transport_get`. Functions with an `error` return a TfMpiTransportResult; on
// anything but kTfMpiOk they write one line into `error` (always NUL-terminated). Threads: as for
// Transport, so no two calls are made at the same time.

#ifndef TFMPI_CORE_TRANSPORT_MPI_PLUGIN_H_
#define TFMPI_CORE_TRANSPORT_MPI_PLUGIN_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TFMPI_TRANSPORT_ABI 7u
#define TFMPI_ERROR_BYTES 512u
#define TFMPI_LANES 4  // GpuMessages::kLanes

enum TfMpiTransportResult {
  kTfMpiOk = 0,
  kTfMpiTimeout = 1,
  kTfMpiFailed = 2,
};

enum TfMpiGroup {
  kTfMpiAll = 0,   // every rank
  kTfMpiRail = 1,  // the ranks with this local rank, one per node; only with `has_rails`
};

struct TfMpiTransportInfo {
  int32_t rank, size, local_rank, local_size, nodes;
  int32_t cores;      // available to the ranks of this node together
  int32_t has_rails;  // 1 if all nodes have the same number of ranks, else 0
  char library[256];  // the MPI library and its version, one line
};

struct TfMpiReduction {
  size_t count;
  int32_t type;  // DataType of core/base/types.h
  int32_t op;    // ReduceOp of core/base/types.h
  double scale;
};

// Memory of a GPU or of the host.
struct TfMpiPart {
  void* data;
  size_t bytes;
};

struct TfMpiTransport {
  uint32_t abi;  // TFMPI_TRANSPORT_ABI of the header it was compiled with
  // MPI_Init, which waits for all ranks. Sets rank, size and library; messages may be sent after
  // it. `shrink_on_fault`: 1 if the ranks continue after deaths, see below.
  int (*init)(int32_t shrink_on_fault, struct TfMpiTransportInfo* info, char* error);
  // Collective over all ranks, which must pass the same value: 0 for the actual nodes, otherwise
  // each `ranks_per_node` consecutive ranks count as a node. Sets the rest of `info`.
  int (*split)(int32_t ranks_per_node, struct TfMpiTransportInfo* info, char* error);
  // Collective over the node: `bytes` of memory shared by its ranks, the first `zeroed` of which
  // are 0, valid until `finalize`. Writes the node's ranks, ascending, into `ranks` (local_size of
  // them).
  int (*map_node)(size_t bytes, size_t zeroed, void** memory, int32_t* ranks, char* error);
  int (*send)(int32_t peer, const void* data, size_t bytes, char* error);
  // Sets *source to the sender of the next message, or -1 if there is none, and *bytes to its size.
  int (*probe)(int32_t* source, size_t* bytes, char* error);
  // Receives the message that the last probe returned.
  int (*receive)(void* data, size_t bytes, char* error);
  // `seconds`: until the deadline.
  int (*allreduce)(int32_t group, const void* in, void* out, const struct TfMpiReduction* reduction,
                   double seconds, char* error);
  // The library's own operation, of a wire type, without a scale. `seconds` < 0: no deadline, by
  // MPI_Allreduce, which blocks; else by MPI_Iallreduce.
  int (*plain_allreduce)(const void* in, void* out, const struct TfMpiReduction* reduction,
                         double seconds, char* error);
  int (*allgather)(const void* in, void* out, const size_t* bytes, double seconds, char* error);
  int (*broadcast)(void* data, size_t bytes, int32_t root, double seconds, char* error);
  int (*finalize)(char* error);

  // Continuing after deaths. can_shrink, after `init`: ok if this MPI, as it was started, supports
  // it; the next three may be called only then. `agree` and `regroup` are collective over the
  // living ranks.
  int (*can_shrink)(char* error);
  // Returns 1 if a rank has died, or one that knows of a death has called `agree` with 0.
  int (*has_failed_rank)(void);
  // *all: 1 if every living rank passed 1 and none had died.
  int (*agree)(int32_t yes, double seconds, int32_t* all, char* error);
  // The living ranks become the group, in the same order. Sets what `init` sets; call `split` and
  // `map_node` next. After a failure `agree` may still be called.
  int (*regroup)(struct TfMpiTransportInfo* info, char* error);

  // GPU memory: the contract is that of GpuMessages (core/transport/gpu_messages.h).
  // takes_gpu_memory, after `init`: 1 if the library reports support for memory of NVIDIA GPUs.
  int (*takes_gpu_memory)(void);
  // `send` and `receive` have one part per rank.
  int (*start_exchange)(int32_t lane, const struct TfMpiPart* send, const struct TfMpiPart* receive,
                        char* error);
  // *ended: 1 if everything started on the lane has ended.
  int (*test_exchange)(int32_t lane, int32_t* ended, char* error);
};

const struct TfMpiTransport* tfmpi_transport_get(void);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // TFMPI_CORE_TRANSPORT_MPI_PLUGIN_H_
