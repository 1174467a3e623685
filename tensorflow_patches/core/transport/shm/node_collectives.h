// Collectives between the ranks of one node, through the memory they share. A `rank` here is a
// local rank.
//
// A tensor is split into one share per rank and processed in chunks that stay in the caches: every
// rank puts everything but its own share into its slot, reduces its own share from its memory and
// the peers' slots, and takes the other shares, reduced, from the peers' slots. No rank waits for a
// peer while it can work on another chunk. Called on the communication thread, by all ranks of the
// node in the same order; the caller owns all buffers. After a failure the node's memory is
// unusable.

#ifndef TFMPI_CORE_TRANSPORT_SHM_NODE_COLLECTIVES_H_
#define TFMPI_CORE_TRANSPORT_SHM_NODE_COLLECTIVES_H_

#include <functional>
#include <utility>
#include <vector>

#include "tensorflow_patches/core/base/status.h"
#include "tensorflow_patches/core/transport/shm/chunk_writer.h"
#include "tensorflow_patches/core/transport/shm/node_memory.h"
#include "tensorflow_patches/core/transport/transport.h"

namespace tfmpi {

class NodeCollectives {
 public:
  // `has_failed_rank`, if not null: whether an operation that has waited long must fail.
  explicit NodeCollectives(const NodeMemory& memory, Stores stores = Stores::kAuto,
                           std::function<bool()> has_failed_rank = nullptr)
      : memory_(memory), writer_(stores), has_failed_rank_(std::move(has_failed_rank)) {}

  int rank() const { return memory_.rank(); }
  int ranks() const { return memory_.ranks(); }

  // `in` may equal `out`. Every rank gets the same bits: each element is reduced in rank order, by
  // one rank or, in a small tensor, by every rank.
  Status Allreduce(const void* in, void* out, const Reduction& reduction, TimePoint deadline);

  // The two halves of an allreduce. After the first, only this rank's share of `out` is valid; the
  // second expects it in `data`.
  Status ReduceScatter(const void* in, void* out, const Reduction& reduction, TimePoint deadline);
  Status AllgatherShares(void* data, size_t count, DataType type, TimePoint deadline);
  // The first element of a rank's share; for the rank after the last one, `count`.
  size_t ShareStart(size_t count, int rank) const;

  // For memory that all ranks can access: rank r's data is at `data[r]`. Reduces this rank's share
  // of all ranks' data into its own. On return all ranks have done so.
  Status ReduceInPlace(const std::vector<char*>& data, const Reduction& reduction,
                       TimePoint deadline);
  Status Barrier(TimePoint deadline);

  // `bytes[r]` bytes come from the node's rank r; `out` receives them in rank order.
  Status Allgather(const void* in, void* out, const std::vector<size_t>& bytes, TimePoint deadline);
  // `rows[r]` rows come from the node's rank r; a row is not empty and must fit into a slot.
  Status SparseAllgather(const std::vector<int64_t>& rows, size_t row_bytes, RowAccess* access,
                         TimePoint deadline);
  Status Broadcast(void* data, size_t bytes, int root, TimePoint deadline);

 private:
  struct Shares;

  Status AllreduceWhole(const void* in, void* out, const Reduction& reduction, TimePoint deadline);
  template <typename Put, typename Reduce, typename Take>
  Status Run(uint64_t chunks, bool reduces, const Put& put, const Reduce& reduce, const Take& take,
             TimePoint deadline);
  // Reduces `count` elements of sources_, which it may advance, to `out` and, for peers, to `slot`.
  void ReduceForAll(const Reduction& reduction, size_t count, char* out, char* slot);
  bool AllPeersReached(std::atomic<uint64_t> RankState::*counter, uint64_t chunks) const;

  const NodeMemory memory_;
  uint64_t base_ = 0;  // chunks of all earlier operations
  ChunkWriter writer_;
  const std::function<bool()> has_failed_rank_;
  std::vector<const void*> sources_;
  std::vector<char> rows_;  // of a chunk, before they are copied into the slot
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_TRANSPORT_SHM_NODE_COLLECTIVES_H_
