// The interface that the engine uses to communicate: over MPI and a node's shared memory, or inside
// one process, where the ranks of tests are threads.
//
// Called on the engine's communication thread, except for calls marked "any thread". Before that
// thread exists, the thread that creates the engine makes the calls; after its end, the thread that
// calls Engine::Join. The caller owns every buffer, and a transport uses it only during the call.
// After a failed call, however, MPI may still write to a buffer of more than kMinMpiShare bytes per
// rank, or to any of PlainAllreduce (core/memory/leaked_memory.h). Every blocking call but Wait and
// Finalize takes a deadline and returns kDeadlineExceeded when it has passed. After a failure the
// engine calls only Send, to tell its peers why it stops, and, with membership(), Receive and the
// functions of Membership.

#ifndef TFMPI_CORE_TRANSPORT_TRANSPORT_H_
#define TFMPI_CORE_TRANSPORT_TRANSPORT_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tensorflow_patches/core/base/row_access.h"
#include "tensorflow_patches/core/base/status.h"
#include "tensorflow_patches/core/base/types.h"
#include "tensorflow_patches/core/cpu/reduce.h"
#include "tensorflow_patches/core/transport/control_links.h"
#include "tensorflow_patches/core/transport/gpu_messages.h"

namespace tfmpi {

struct Topology {
  int rank = 0;
  int size = 1;
  int local_rank = 0;  // rank among the ranks of this node
  int local_size = 1;  // ranks on this node
  int nodes = 1;
  int cores = 1;        // available to the ranks of this node together
  int node_leader = 0;  // the rank that is this node's leader
};

struct ControlMessage {
  int source;
  std::string bytes;
};

class Membership;
class NodeBuffers;

class Transport {
 public:
  virtual ~Transport() = default;

  // Any thread.
  virtual const Topology& topology() const = 0;
  // Any thread. For people: "MPI (Open MPI v5.0.11)".
  virtual std::string description() const = 0;

  // Control plane: small messages, delivered in order between two ranks. Send does not wait.
  // Receive appends the messages that have arrived; over MPI it waits for the rest of a large one.
  virtual Status Send(int peer, const std::string& bytes) = 0;
  virtual Status Receive(std::vector<ControlMessage>* inbox) = 0;
  // The ranks with which this one exchanges the engine's messages. Constant for the lifetime of the
  // group.
  virtual ControlLinks links() const { return MakeStar(topology().rank, topology().size); }
  // Waits until the rings of shared memory have taken all messages that this rank has sent. (MPI
  // buffers its messages and delivers them during later calls.) Called between sending a response
  // list to the children and the operations in it, which the children begin only once they have
  // read the list. A child reads messages whenever it is in no operation.
  virtual Status Flush(TimePoint /*deadline*/) { return Status(); }
  // Sleeps until a message may have arrived, Wake is called, or `limit` has passed. Calls `ready`
  // when the other ranks can see that this one waits, and does not sleep if it returns true. May
  // return early. `expecting`: whether a message is expected soon; if false, a message from another
  // node may be noticed only after `limit`.
  virtual void Wait(Clock::duration limit, bool expecting, const std::function<bool()>& ready) = 0;
  // Whether the engine may poll instead of calling Wait: the node has a core for each rank, and
  // polling does not call MPI.
  virtual bool MayPoll() const { return false; }
  // Any thread. Ends this rank's Wait; cheap if it does not wait.
  virtual void Wake() = 0;

  // A word that all ranks share, initially zero, for the engine's votes; null if there is none.
  virtual std::atomic<uint64_t>* SharedWord() { return nullptr; }
  // With a shared word: kSharedNumbers numbers for each rank, written by that rank, read by all.
  static constexpr size_t kSharedNumbers = 16;
  virtual std::atomic<int64_t>* SharedNumbers(int /*rank*/) { return nullptr; }
  // Call it after a change of the word: wakes the ranks that sleep in Wait.
  virtual void WakePeers() {}

  // Data plane: collective, called by all ranks in one agreed order.
  //
  // `in` may equal `out`. The result has the same bits on every rank. The op is neither kAverage
  // nor kPlainSum.
  virtual Status Allreduce(const void* in, void* out, const Reduction& reduction,
                           TimePoint deadline) = 0;
  // The MPI library's own operation, for comparison; of a wire type, with scale 1. With the
  // deadline TimePoint::max() it may block forever.
  virtual Status PlainAllreduce(const void* in, void* out, const Reduction& reduction,
                                TimePoint deadline) {
    return Allreduce(in, out, reduction, std::min(deadline, Clock::now() + std::chrono::hours(1)));
  }
  // `bytes[r]` bytes come from rank r; `out` receives them in rank order. `in` may be this rank's
  // part of `out`.
  virtual Status Allgather(const void* in, void* out, const std::vector<size_t>& bytes,
                           TimePoint deadline) = 0;
  // `rows[r]` rows come from rank r, with `row_bytes` each. Calls Put and Take of `access`.
  virtual Status SparseAllgather(const std::vector<int64_t>& rows, size_t row_bytes,
                                 RowAccess* access, TimePoint deadline);
  virtual Status Broadcast(void* data, size_t bytes, int root, TimePoint deadline) = 0;

  // Collective over all ranks: creates a buffer of `bytes` for each rank (shm/node_buffers.h), in
  // which the ranks reduce in place, inside the node and between nodes. If this transport has no
  // such buffers, *made stays null and *why empty, on all ranks. If this node cannot have them,
  // *why is the reason; other nodes may have theirs. Destroy the buffers before the transport.
  virtual Status MakeNodeBuffers(size_t /*bytes*/, TimePoint /*deadline*/,
                                 std::unique_ptr<NodeBuffers>* /*made*/, std::string* /*why*/) {
    return Status();
  }

  // For data in GPU memory. Null if the library that moves the bytes does not report support for
  // it, which may differ between ranks. Lives as long as this.
  virtual GpuMessages* gpu_messages() { return nullptr; }

  // Connects the ranks with this local rank, one per node. Only its Allreduce may be called, in the
  // common order of collective calls; it rounds what may be rounded (Reduction::rounds) if that is
  // configured. Null if there is one node, or if the nodes have different numbers of ranks. Lives
  // as long as this.
  virtual Transport* rail() { return nullptr; }

  // How the ranks continue after deaths (membership.h); null: they cannot. Lives as long as this.
  virtual Membership* membership() { return nullptr; }

  // Leaves the group, which all ranks must have agreed to end; the last call. May wait for them.
  virtual Status Finalize() = 0;
};

std::vector<size_t> BytesOfRows(const std::vector<int64_t>& rows, size_t row_bytes);

// Appends every rank's `own`, of any length, to `all`, in rank order. Collective.
Status AllgatherStrings(Transport* transport, const std::string& own, TimePoint deadline,
                        std::vector<std::string>* all);

}  // namespace tfmpi

#endif  // TFMPI_CORE_TRANSPORT_TRANSPORT_H_
