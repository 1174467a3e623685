// How tensors are joined and cut on their way: all sizes in one place, in bytes, from the graph to
// the wire. Python reads its own through the C API. Why they are as they are:
// docs/decisions/006-fusion.md, 007-shared-memory.md, 008-between-nodes.md.

#ifndef TFMPI_CORE_BASE_SIZES_H_
#define TFMPI_CORE_BASE_SIZES_H_

#include <cstddef>

namespace tfmpi {

// In a graph. An average of many tensors is closed when it holds this much: the sooner it is, the
// sooner it travels, and each costs an op.
inline constexpr size_t kOpBytes = size_t{2} << 20;
// A gradient of this size has an average of its own, and waits for no other.
inline constexpr size_t kOwnOpBytes = size_t{1} << 20;

// In the engine. A tensor of this size travels alone, from where it lies: copying it into a buffer
// and out would cost more than a transfer of its own.
inline constexpr size_t kAloneBytes = size_t{256} << 10;
// All others share a buffer of at most this size; the default of TF_MPI_FUSION_THRESHOLD.
inline constexpr size_t kFusionBytes = size_t{4} << 20;

// Inside a node. Up to this size every rank reduces all of a tensor, which spares one wait of two.
inline constexpr size_t kWholeBytes = size_t{8} << 10;
// A larger one passes through shared memory in chunks that stay in the second-level caches of the
// ranks; with very many ranks in smaller ones, so that a node's take no more than this in all.
inline constexpr size_t kChunkBytes = size_t{128} << 10;
inline constexpr size_t kMinChunkBytes = size_t{32} << 10;
inline constexpr size_t kMaxChunksBytes = size_t{64} << 20;

// From a GPU and back. So much is fetched, while what was fetched before is reduced, and what was
// reduced before that is on its way back.
inline constexpr size_t kGpuChunkBytes = size_t{2} << 20;

// Inside a GPU that ranks share. So much of each rank is summed at a time, in two places by turns:
// processes take turns at a GPU, and each turn costs more than the copies of a chunk.
inline constexpr size_t kSharedGpuChunkBytes = size_t{32} << 20;

// From GPU to GPU by MPI. So much is shared out, added up and spread at a time, in two places by
// turns: of eight ranks each message is 2 MiB.
inline constexpr size_t kGpuToGpuChunkBytes = size_t{16} << 20;

// Between nodes. Reduced inside the node, between nodes and shared out, so much at a time.
inline constexpr size_t kStageBytes = size_t{4} << 20;
// Through MPI a chunk of this size stays in the cache between being reduced and being copied.
inline constexpr size_t kMpiChunkBytes = size_t{2} << 20;
// Each rank must get so much to reduce for an exchange of shares to be worth its messages.
inline constexpr size_t kMinMpiShare = size_t{16} << 10;

}  // namespace tfmpi

#endif  // TFMPI_CORE_BASE_SIZES_H_
