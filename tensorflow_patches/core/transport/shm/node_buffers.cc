#include "tensorflow_patches/core/transport/shm/node_buffers.h"

#include <sys/mman.h>

#include "tensorflow_patches/core/transport/shm/segment.h"

namespace tfmpi {

Status NodeBuffers::Make(NodeCollectives* node, const Options& options, TimePoint deadline,
                         std::unique_ptr<NodeBuffers>* made, std::string* why) {
  std::unique_ptr<NodeBuffers> buffers(new NodeBuffers(node, options));
  const bool first = node->rank() == 0;
  const size_t bytes = buffers->bytes();
  SegmentId id = {};
  void* memory = nullptr;
  if (options.map) {
    memory = options.map(bytes);
  } else if (first) {
    memory = CreateSegment(bytes, &id, why);
  }
  Status status = node->Broadcast(&id, sizeof id, 0, deadline);
  if (status.ok() && !options.map && !first) memory = AttachSegment(id, bytes, why);
  buffers->memory_ = static_cast<char*>(memory);
  float mapped = memory != nullptr ? 1 : 0;
  if (status.ok()) {
    status =
        node->Allreduce(&mapped, &mapped, {1, DataType::kFloat32, ReduceOp::kMin, 1}, deadline);
  }
  if (first) RemoveSegment(id);
  if (!status.ok()) return status;
  if (mapped == 0) {
    if (why->empty()) *why = "another rank of the node cannot map it";
    return status;
  }
  if (!options.map) madvise(memory, bytes, MADV_DONTFORK);  // a child process is not a rank
  *made = std::move(buffers);
  return status;
}

NodeBuffers::~NodeBuffers() {
  if (memory_ != nullptr && !options_.map) UnmapSegment(memory_, bytes());
}

// With several nodes, the node waits twice: no rank may read a share before it has been reduced
// between nodes.
Status NodeBuffers::Allreduce(size_t offset, const Reduction& reduction, TimePoint deadline) {
  Reduction inside = reduction;
  if (options_.between) inside.scale = 1;
  data_.clear();
  for (int r = 0; r < ranks(); ++r) data_.push_back(of(r) + offset);
  Status status = node_->ReduceInPlace(data_, inside, deadline);
  if (!status.ok() || !options_.between) return status;
  const size_t start = ShareStart(reduction.count, rank());
  Reduction share = reduction;
  share.count = ShareStart(reduction.count, rank() + 1) - start;
  status = options_.between(data_[rank()] + start * SizeOf(reduction.type), share, deadline);
  return status.ok() ? Barrier(deadline) : status;
}

}  // namespace tfmpi
