// The one virtual seam between the engine and whatever moves the bytes: MPI, or threads in tests.
//
// Who calls: the engine's communication thread, but for what says "any thread"; before that thread
// exists, and when it has ended, the thread that creates the engine. Who owns: the caller owns
// every buffer; a transport keeps no pointer once a call has returned. Every blocking call takes a
// deadline and returns kDeadlineExceeded when it passes; after any failure the transport's state is
// undefined and the engine uses it no more.

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
  int cores = 1;       // that the ranks of this node may use together
  int node_first = 0;  // the rank whose local rank is 0 here
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

  // Control plane: small messages, delivered in order between two ranks. Send and Receive wait for
  // no peer.
  virtual Status Send(int peer, const std::string& bytes) = 0;
  virtual Status Receive(std::vector<ControlMessage>* inbox) = 0;
  // Between which ranks the engine's messages go. The same as long as the group is.
  virtual ControlLinks links() const { return MakeStar(topology().rank, topology().size); }
  // Who has passed a response list on, before it takes part in an operation that its children begin
  // when they have read all that was sent: waits until that has left. They read whenever they are
  // in no operation.
  virtual Status Flush(TimePoint deadline) {
    (void)deadline;
    return Status();
  }
  // Sleeps until a message may be there, Wake is called, or `limit` has passed; not at all if
  // `ready` is true once others can know of the waiter. May return early. `expecting`: a message
  // should come soon; else one may lie there until `limit`, where messages wake nobody.
  virtual void Wait(Clock::duration limit, bool expecting, const std::function<bool()>& ready) = 0;
  // Whether a thread that waits for peers may poll for them: each rank has a core of its own, and
  // nothing has to be asked of a library.
  virtual bool MayPoll() const { return false; }
  // Any thread. Cheap when nobody waits.
  virtual void Wake() = 0;

  // A word that all ranks share, zero at first, for the engine's votes; null where there is none.
  virtual std::atomic<uint64_t>* SharedWord() { return nullptr; }
  // Where there is one: so many numbers of each rank, which that rank writes and all may read.
  static constexpr size_t kSharedNumbers = 8;
  virtual std::atomic<int64_t>* SharedNumbers(int rank) {
    (void)rank;
    return nullptr;
  }
  // After a change of the word: ends the sleep of all who sleep in Wait.
  virtual void WakePeers() {}

  // Data plane: collective, called by all ranks in one agreed order. `in` may equal `out`. The
  // result has the same bits on every rank. The op is not kAverage.
  virtual Status Allreduce(const void* in, void* out, const Reduction& reduction,
                           TimePoint deadline) = 0;
  // What the MPI library does itself, for comparison; no scale. A deadline of TimePoint::max() is
  // none: the call may then block.
  virtual Status PlainAllreduce(const void* in, void* out, const Reduction& reduction,
                                TimePoint deadline) {
    return Allreduce(in, out, reduction, std::min(deadline, Clock::now() + std::chrono::hours(1)));
  }
  // `bytes[r]` comes from rank r; `out` holds them one after another. `in` may be its place there.
  virtual Status Allgather(const void* in, void* out, const std::vector<size_t>& bytes,
                           TimePoint deadline) = 0;
  // `rows[r]` rows of rank r, of `row_bytes` each. Calls Put and Take of `access`.
  virtual Status SparseAllgather(const std::vector<int64_t>& rows, size_t row_bytes,
                                 RowAccess* access, TimePoint deadline);
  virtual Status Broadcast(void* data, size_t bytes, int root, TimePoint deadline) = 0;

  // Collective over all ranks: buffers of so many bytes each (shm/node_buffers.h), in which the
  // ranks of a node reduce in place, and the nodes among themselves. `made` stays null, and `why`
  // empty, where the ranks have none, alike on all; with a reason where this node's cannot have
  // them: others may. They end before this.
  virtual Status MakeNodeBuffers(size_t bytes, TimePoint deadline,
                                 std::unique_ptr<NodeBuffers>* made, std::string* why) {
    (void)bytes, (void)deadline, (void)made, (void)why;
    return Status();
  }

  // Between GPUs, where what moves the bytes takes their memory; null: it does not say that it
  // does. Each rank knows of itself alone. Lives as long.
  virtual GpuMessages* gpu_messages() { return nullptr; }

  // The ranks with this local rank, one of each node: for Allreduce alone, among the collective
  // calls of all. What travels between nodes travels so: rounded, where that is wanted. Null: there
  // is one node, or they have different numbers of ranks. It lives as long as this.
  virtual Transport* rail() { return nullptr; }

  // How its ranks go on without those that die (membership.h); null: they cannot. Lives as long.
  virtual Membership* membership() { return nullptr; }

  // Leaves the group in order; the last call. Only after all ranks have agreed to end.
  virtual Status Finalize() = 0;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_TRANSPORT_TRANSPORT_H_
