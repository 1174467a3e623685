// The sizes, in bytes, at which tensors are fused and split, from the graph to the wire. For the
// reasons see docs/decisions/006-fusion.md, 007-shared-memory.md and 008-between-nodes.md.

#ifndef TFMPI_CORE_BASE_SIZES_H_
#define TFMPI_CORE_BASE_SIZES_H_

#include <cstddef>

namespace tfmpi {

// In a graph; Python reads these two through the C API. An average op gets no further tensor once
// it has this size: smaller ops could start sooner, but each op costs time.
inline constexpr size_t kOpBytes = size_t{2} << 20;
// A gradient of at least this size gets an average op of its own, so it waits for no other.
inline constexpr size_t kOwnOpBytes = size_t{1} << 20;

// In the engine. A tensor of at least this size is sent alone and in place: copying it into a
// buffer and out again would cost more than a separate transfer.
inline constexpr size_t kAloneBytes = size_t{256} << 10;
// All others share a buffer of at most this size; the default of TF_MPI_FUSION_THRESHOLD.
inline constexpr size_t kFusionBytes = size_t{4} << 20;

// Inside a node. Up to this size every rank reduces the whole tensor, which saves one of two waits.
inline constexpr size_t kWholeBytes = size_t{8} << 10;
// A larger tensor passes through shared memory in chunks that fit the ranks' second-level caches.
// With very many ranks the chunks are smaller, down to kMinChunkBytes, so that those of a node's
// ranks together do not exceed kMaxChunksBytes.
inline constexpr size_t kChunkBytes = size_t{128} << 10;
inline constexpr size_t kMinChunkBytes = size_t{32} << 10;
inline constexpr size_t kMaxChunksBytes = size_t{64} << 20;

// From a GPU and back. This much is fetched while the previous chunk is reduced and the one before
// that is copied back.
inline constexpr size_t kGpuChunkBytes = size_t{2} << 20;

// Inside a GPU that several ranks share. This much of each rank is summed at a time, alternating
// between two buffers: processes take turns on a GPU, and a turn costs more than copying a chunk.
inline constexpr size_t kSharedGpuChunkBytes = size_t{32} << 20;

// From GPU to GPU by MPI. This much is scattered, reduced and gathered at a time, alternating
// between two buffers. With eight ranks each message is 2 MiB.
inline constexpr size_t kGpuToGpuChunkBytes = size_t{16} << 20;

// Between nodes. This much at a time is reduced inside the node, then between nodes, and then
// distributed inside the node.
inline constexpr size_t kStageBytes = size_t{4} << 20;
// Over MPI a larger tensor travels in chunks of about this size, which stay in the cache between
// reduction and copy.
inline constexpr size_t kMpiChunkBytes = size_t{2} << 20;
// Reducing in shares is worth its messages only if each rank has at least this much to reduce.
inline constexpr size_t kMinMpiShare = size_t{16} << 10;

}  // namespace tfmpi

#endif  // TFMPI_CORE_BASE_SIZES_H_
