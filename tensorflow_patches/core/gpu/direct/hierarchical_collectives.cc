#include "tensorflow_patches/core/gpu/direct/hierarchical_collectives.h"

#include <utility>

#include "tensorflow_patches/core/gpu/await_event.h"
#include "tensorflow_patches/core/observability/timeline.h"
#include "tensorflow_patches/core/request/fusion_entry.h"

namespace tfmpi {

// The parts of one reduction: equal shares of the node's ranks, one after another, then the rest.
struct HierarchicalCollectives::Shares {
  Shares(void* out, size_t elements, DataType element_type, size_t rank, size_t ranks)
      : type(element_type), count(elements / ranks), rest_count(elements % ranks) {
    all = static_cast<char*>(out);
    own = all + rank * count * SizeOf(type);
    rest = all + ranks * count * SizeOf(type);
  }

  DataType type;
  size_t count;       // elements per share
  size_t rest_count;  // less than the number of ranks
  char* all;
  char* own;
  char* rest;
};

HierarchicalCollectives::HierarchicalCollectives(Gpu* gpu,
                                                 std::unique_ptr<DeviceCollectives> inside,
                                                 const Topology& topology, Transport* rail,
                                                 size_t chunk_bytes)
    : gpu_(gpu),
      inside_(std::move(inside)),
      rank_(static_cast<size_t>(topology.local_rank)),
      size_(static_cast<size_t>(topology.local_size)),
      between_(rail, chunk_bytes) {}

HierarchicalCollectives::~HierarchicalCollectives() {
  if (reduced_ != nullptr) gpu_->Delete(reduced_);
}

std::string HierarchicalCollectives::description() const {
  return inside_->description() + " inside each node, MPI between nodes";
}

void HierarchicalCollectives::Abort() {
  if (failure_.ok()) failure_ = Status(Code::kInternal, description() + " was aborted");
  inside_->Abort();
}

Status HierarchicalCollectives::Allreduce(const void* in, void* out, size_t count, DataType type,
                                          ReduceOp op, double scale, GpuStream stream,
                                          TimePoint deadline) {
  if (failure_.ok() && reduced_ == nullptr) failure_ = gpu_->NewEvent(&reduced_);
  if (failure_.ok() && count != 0) {
    failure_ = Reduce(in, Shares(out, count, type, rank_, size_), op, scale, stream, deadline);
  }
  return failure_;
}

Status HierarchicalCollectives::Reduce(const void* in, const Shares& shares, ReduceOp op,
                                       double scale, GpuStream stream, TimePoint deadline) {
  Status status;
  if (shares.count != 0) {
    status = inside_->ReduceScatter(in, shares.own, shares.count, shares.type, op, scale, stream,
                                    deadline);
  }
  if (status.ok() && shares.rest_count != 0) {
    const char* const rest = static_cast<const char*>(in) + (shares.rest - shares.all);
    status = inside_->Allreduce(rest, shares.rest, shares.rest_count, shares.type, op, scale,
                                stream, deadline);
  }
  if (status.ok()) status = gpu_->Record(reduced_, stream);
  if (status.ok()) status = AwaitReduced(deadline);
  if (status.ok()) status = Exchange(shares, op, stream, deadline);
  if (status.ok() && shares.count != 0) {
    status =
        inside_->Allgather(shares.own, shares.all, shares.count, shares.type, stream, deadline);
  }
  return status;
}

// Waits until the GPUs of this node have reduced. Detects the loss of one of its ranks, for which
// Exchange's copies would wait.
Status HierarchicalCollectives::AwaitReduced(TimePoint deadline) {
  const Span span(Stage::kReduce, "inside the node");
  return AwaitEvent(
      gpu_, reduced_, deadline,
      [this] {
        return "the reduction by the GPUs of this node (" + inside_->description() +
               ") has not ended on " + gpu_->description() +
               " within TF_MPI_STALL_TIMEOUT (at most 300 s): another rank of the node or this GPU "
               "hangs. If all ranks are alive, try TF_MPI_GPU_TRANSPORT=staged";
      },
      [this] { return inside_->Poll(); });
}

// On return `stream` waits for the copies to and from the host, also after a failure.
Status HierarchicalCollectives::Exchange(const Shares& shares, ReduceOp op, GpuStream stream,
                                         TimePoint deadline) {
  Signature signature;
  signature.op = op;  // an average is already scaled
  signature.dtype = shares.type;
  signature.on_gpu = true;
  Request own;
  own.name = "a share of gradients";
  own.signature = signature;
  own.signature.shape = {static_cast<int64_t>(shares.count)};
  own.input = own.output = shares.own;
  own.memory.gpu = gpu_;
  own.memory.stream = stream;
  own.memory.ready = reduced_;
  Request rest = own;
  rest.signature.shape = {static_cast<int64_t>(shares.rest_count)};
  rest.input = rest.output = shares.rest;
  return between_.Allreduce({{own.signature, &own}, {rest.signature, &rest}}, 1, deadline);
}

}  // namespace tfmpi
