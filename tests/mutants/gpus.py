"""Mutations that omit a wait, an event or a lifetime on GPUs, for tests/mutations.py."""

from __future__ import annotations

from mutants.cuda_aware import CUDA_AWARE
from mutants.mutation import Mutation


def _gpu(
    name: str,
    what: str,
    where: str,
    old: str,
    new: str,
    targets: tuple[str, ...] = ("gpu_test",),
) -> Mutation:
    """Omits a wait, an event or a lifetime on GPUs; tests with the simulated GPU must notice."""
    return Mutation(
        f"gpu_{name}", what, old, new, (), cpp=True, where=where, targets=targets
    )  # fmt: skip


def _nodes(name: str, what: str, old: str, new: str, where: str = "") -> Mutation:
    return _gpu(f"nodes_{name}", what, where or _NODES, old, new, ("gpu_test",))


def _nccl(name: str, what: str, old: str, new: str) -> Mutation:
    """Changes how nccl.cc handles NCCL's results; tests with a fake NCCL must notice."""
    return _gpu(f"nccl_{name}", what, _NCCL, old, new, ("cuda_test",))


_STAGED = "core/gpu/staged/staged_reduction.cc"
_DIRECT = "core/gpu/direct/direct_reduction.cc"
_PEERS = "core/gpu/direct/peer_collectives.cc"
_AWARE = "core/gpu/direct/cuda_aware_collectives.cc"
_RING = "core/gpu/staged/pinned_ring.cc"
_CHOICE = "core/gpu/gpu_reduction.cc"
_NODES = "core/gpu/direct/hierarchical_collectives.cc"
_NCCL = "core/device/nccl.cc"

GPUS: tuple[Mutation, ...] = (
    _gpu(
        "staged_gradient", "a staged gradient is copied before it is ready", _STAGED,
        "status = gpu->Wait(lane->fetching, request->memory.ready);", "status = Status();",
    ),
    _gpu(
        "staged_slot", "a slot is reused before its contents have landed", _STAGED,
        "status = gpu->Wait(lane->fetching, other->landed[slot.number]);", "(void)other;",
    ),
    _gpu(
        "staged_arrival", "a chunk is exchanged before it has arrived", _STAGED,
        "if (status.ok()) status = AwaitFetched(slot, *work);", "",
    ),
    _gpu(
        "staged_submitters", "a result is used before it has landed", _STAGED,
        "if (status.ok()) status = gpu->Wait(last, lane->done);", "",
    ),
    _gpu(
        "staged_fetched", "the event of a chunk's arrival is not recorded", _STAGED,
        "if (status.ok()) status = gpu->Record(lane->fetched[slot.number], lane->fetching);", "",
    ),
    _gpu(
        "staged_landed", "the event of a slot's end is not recorded", _STAGED,
        "status = lane->gpu->Record(lane->landed[slot.number], lane->landing);", "{}",
    ),
    _gpu(
        "staged_done", "the event of the result is not recorded", _STAGED,
        "gpu->Record(lane->done, stream);", "stream != nullptr ? Status() : Status();",
    ),
    _gpu(
        "staged_peers", "peers reuse a slot before this rank has landed from it", _STAGED,
        "if (ring_.shared() == nullptr) break;", "break;",
    ),
    _gpu(
        "staged_barrier", "a broadcast frees the peers' slots before they have arrived", _STAGED,
        "return ring_.shared()->Barrier(work.deadline);", "return status;",
    ),
    _gpu(
        "staged_shares", "a rank lands its own slot instead of the peers' shares", _STAGED,
        "take(shared->of(r) + slot.offset", "take(shared->of(shared->rank()) + slot.offset",
    ),
    _gpu(
        "node_reduced", "a share is read before its rank has reduced it",
        "core/transport/shm/node_collectives.cc",
        "return Run(1, true, kNothing, reduce, kNothing, deadline);",
        "return Run(1, false, kNothing, kNothing, reduce, deadline);", ("transport_test",),
    ),
    _gpu(
        "node_between", "a share is read before it has been exchanged between nodes",
        "core/transport/shm/node_buffers.cc",
        "return status.ok() ? Barrier(deadline) : status;", "return status;",
        ("transport_test",),
    ),
    Mutation(
        "gpu_glue_ready", "a kernel's gradient travels before it is ready",
        "return ToAbsl(memory_.gpu->Record(ready_.get(), memory_.stream));",
        "return absl::OkStatus();", (), cpp=True, standin=("compiled_steps.py",),
    ),
    _gpu(
        "ring_registered", "a node's memory stays registered", _RING,
        "if (registered_by_ != nullptr) registered_by_->Unregister(shared_->memory());", "",
    ),
    _gpu(
        "ring_memory", "pinned memory is never freed", _RING,
        "if (pinned_by_ != nullptr) pinned_by_->DeletePinned(memory_);", "",
    ),
    _gpu(
        "ring_events", "events are never freed", _RING,
        "if (landed[i] != nullptr) gpu->Delete(landed[i]);", "",
    ),
    _gpu(
        "direct_gradient", "GPUs reduce a gradient before it is ready", _DIRECT,
        "TFMPI_RETURN_IF_NOT_OK(gpu_->Wait(stream_, last));", "",
    ),
    _gpu(
        "direct_result", "a result of GPUs is used before it is ready", _DIRECT,
        "status = gpu_->Wait(last, one.event);", "",
    ),
    _gpu(
        "direct_event", "the event of a reduction is not recorded", _DIRECT,
        "Status status = gpu_->Record(one.event, stream_);", "Status status;",
    ),
    _gpu(
        "direct_weights", "a weight is read before it has arrived", _DIRECT,
        "TFMPI_RETURN_IF_NOT_OK(AwaitWeights(entries[0].request->name, deadline));",
        "(void)deadline;",
    ),
    _gpu(
        "direct_read", "the event of the weights is not recorded", _DIRECT,
        "TFMPI_RETURN_IF_NOT_OK(gpu_->Record(read_, stream_));", "",
    ),
    _gpu(
        "direct_buffers", "fusion buffers are never freed", _DIRECT,
        "for (const auto& [buffer, bytes] : buffers_) collectives_->DeleteBuffer(buffer);", "",
    ),
    _gpu(
        "peers_put", "a chunk is summed before all ranks have written theirs", _PEERS,
        "  if (status.ok()) status = AwaitPut(deadline);\n  if (!status.ok()) return status;\n",
        "  if (!status.ok()) return status;\n",
    ),
    _gpu(
        "peers_event", "the event of a written chunk is not recorded", _PEERS,
        "  if (status.ok()) status = gpu_->Record(put_, stream);\n"
        "  if (status.ok()) status = AwaitPut(deadline);\n  if (!",
        "  if (status.ok()) status = AwaitPut(deadline);\n  if (!",
    ),
    _gpu(
        "peers_slot", "a chunk overwrites one that others still read", _PEERS,
        "chunks_++ % kSlots * chunk_bytes_", "0 * chunks_++",
    ),
    _gpu(
        "peers_own", "shared memory is never freed", _PEERS,
        "if (own_ != nullptr && closed_) gpu_->DeleteMemory(own_);", "",
    ),
    _gpu(
        "peers_close", "memory of other ranks stays open", _CHOICE,
        "if (own.ok()) direct_->Close();", "",
    ),
    _gpu(
        "peers_drain", "a rank ends while others read its memory", _CHOICE,
        "const Status own = direct_->Drain(deadline);", "const Status own;",
    ),
)  # fmt: skip
GPUS += tuple(
    _gpu(name, what, _AWARE, old, new, ("gpu_test",)) for name, what, old, new in CUDA_AWARE
)

GPUS += (
    _nodes(
        "reduced", "a share travels before the node has reduced it",
        "  if (status.ok()) status = AwaitReduced(deadline);\n", "  (void)deadline;\n",
    ),
    _nodes(
        "event", "the event of a reduction inside a node is not recorded",
        "  if (status.ok()) status = gpu_->Record(reduced_, stream);\n", "",
    ),
    _nodes(
        "poll", "an error of a node's GPUs is not polled for",
        "[this] { return inside_->Poll(); });", "[] { return Status(); });",
    ),
    _nodes(
        "deadline", "waiting for a node's GPUs has no limit",
        "gpu_, reduced_, deadline,", "gpu_, reduced_, deadline + std::chrono::hours(1),",
    ),
    _nodes(
        "between", "a share stays in its node",
        "  if (status.ok()) status = Exchange(shares, op, stream, deadline);\n", "",
    ),
    _nodes(
        "rest", "the remainder outside the shares is not reduced",
        "if (status.ok() && shares.rest_count != 0) {", "if (false) {",
    ),
    _nodes(
        "rest_between", "the remainder outside the shares stays in its node",
        ", {rest.signature, &rest}}", "}",
    ),
    _nodes(
        "stream", "a share is distributed before it has returned",
        "  own.memory.stream = stream;\n", "  (void)stream;\n",
    ),
    _nodes(
        "abort", "waits for a lost rank of the node are not aborted",
        "  inside_->Abort();\n", "",
    ),
    _nodes(
        "failure", "continues after an error",
        "    failure_ = Reduce(", "    return Reduce(",
    ),
    _nodes(
        "lifetime", "its event is never freed",
        "  if (reduced_ != nullptr) gpu_->Delete(reduced_);\n", "",
    ),
    _nodes(
        "rounded", "data that leaves a node is not rounded",
        "wire == DataType::kFloat32) return between;", "wire != DataType::kBool) return between;",
        "core/transport/node_transport.cc",
    ),
    _nodes(
        "first", "rank 0 decides for all nodes",
        "all.data() + static_cast<size_t>(first) * bytes", "all.data() + 0 * first", _CHOICE,
    ),
    _nccl(
        "settle", "a call in progress counts as done",
        "    while (result == kNcclInProgress && comm_ != nullptr) {\n",
        "    if (result == kNcclInProgress) return kNcclSuccess;\n"
        "    while (result == kNcclInProgress && comm_ != nullptr) {\n",
    ),
    _nccl(
        "deadline", "waiting for a call in progress has no limit",
        "if (result != kNcclInProgress || Clock::now() >= deadline) break;",
        "if (result != kNcclInProgress) break;\n      (void)deadline;",
    ),
    _nccl(
        "poll", "a later error is not polled for",
        "    return state == kNcclInProgress ? Status() "
        ": CheckCollective(\"a collective\", state);\n",
        "    return Status();\n",
    ),
    _nccl(
        "failed", "continues after an error",
        "    if (result != kNcclSuccess) failed_ = true;\n", "",
    ),
    _nccl(
        "end", "ranks end without finalizing together",
        "const int started = nccl_.CommFinalize(comm_);",
        "const int started = kNcclSuccess;",
    ),
    _nccl(
        "last", "a communicator is destroyed before all ranks have finished",
        "finalized = Settle(started, Clock::now() + kFinalizeTimeout) == kNcclSuccess;",
        "finalized = started == kNcclSuccess || started == kNcclInProgress;",
    ),
    _nccl(
        "patience", "waiting for ranks that never finish has no limit",
        "Settle(started, Clock::now() + kFinalizeTimeout)", "Settle(started, TimePoint::max())",
    ),
    _nccl(
        "once", "a communicator is aborted twice",
        "nccl_.CommAbort(std::exchange(comm_, nullptr));", "nccl_.CommAbort(comm_);",
    ),
    _nccl(
        "registered", "registrations that ended with the communicator are removed again",
        "    for (auto& [memory, handle] : buffers_) handle = nullptr;\n", "",
    ),
    _nccl(
        "used", "a buffer is freed while streams use it",
        "    options_.driver->CtxSynchronize();\n    Release(known", "    Release(known",
    ),
    _nccl(
        "left", "remaining buffers are freed while streams use them",
        "    if (!buffers_.empty()) options_.driver->CtxSynchronize();\n", "",
    ),
    _nccl(
        "kept", "remaining buffers are never freed",
        "    for (const auto& [memory, handle] : buffers_) Release(memory, handle);\n", "",
    ),
    _nccl(
        "operation", "the operation of a scaled sum is never freed",
        "if (scaled && result == kNcclSuccess) nccl_.RedOpDestroy(reduction, comm_);", "",
    ),
    _nccl(
        "stream", "a reduction is enqueued on another stream",
        "NcclType(type), reduction, comm_, stream);",
        "NcclType(type), reduction, comm_, stream != nullptr ? nullptr : stream);",
    ),
    _nccl(
        "gather_stream", "an allgather is enqueued on another stream",
        "NcclType(type), comm_, stream);",
        "NcclType(type), comm_, stream != nullptr ? nullptr : stream);",
    ),
    _nccl(
        "blocks", "a communicator may block",
        "    config.blocking = 0;\n", "",
    ),
)  # fmt: skip
