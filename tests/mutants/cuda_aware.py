"""Mutations of waits, events and lifetimes in core/gpu/direct/cuda_aware_collectives.cc."""

from __future__ import annotations

# name, effect, line, replacement
CUDA_AWARE: tuple[tuple[str, str, str, str], ...] = (
    (
        "aware_coming", "MPI gets a chunk before it has arrived",
        "      status = gpu_->Query(slot->event, &ended);\n"
        "      if (!status.ok() || !ended) return status;\n      status = Share(*slot);",
        "      status = Share(*slot);",
    ),
    (
        "aware_put", "the event of a chunk is not recorded",
        "if (status.ok()) status = gpu_->Record(slot->event, stream);", "",
    ),
    (
        "aware_sharing", "shares are added before they have arrived",
        "      if (!status.ok() || !ended) return status;\n      status = Add(*slot, terms);",
        "      if (!status.ok()) return status;\n      status = Add(*slot, terms);",
    ),
    (
        "aware_adding", "a sum is sent before it is complete",
        "      status = gpu_->Query(slot->event, &ended);\n"
        "      if (!status.ok() || !ended) return status;\n      status = Spread(*slot);",
        "      status = Spread(*slot);",
    ),
    (
        "aware_sum", "the event of a sum is not recorded",
        "return status.ok() ? gpu_->Record(slot.event, terms.stream) : status;", "return status;",
    ),
    (
        "aware_spreading", "a result is read before the other sums have arrived",
        "      if (!status.ok() || !ended) return status;\n"
        "      status = CopyOut(*slot, terms.stream);",
        "      if (!status.ok()) return status;\n      status = CopyOut(*slot, terms.stream);",
    ),
    (
        "aware_slot", "a chunk overwrites another one in flight",
        "if (started < chunks && next->stage == Stage::kFree) {", "if (started < chunks) {",
    ),
    (
        "aware_current", "the thread that calls MPI has no current GPU",
        "Status status = gpu_->MakeCurrent();", "Status status;",
    ),
    (
        "aware_freed", "memory is freed while MPI may still write to it",
        "if (slot.memory != nullptr && failure_.ok()) gpu_", "if (slot.memory != nullptr) gpu_",
    ),
    (
        "aware_kept", "memory passed to MPI is never freed",
        "if (slot.memory != nullptr && failure_.ok()) gpu_->DeleteMemory(slot.memory);", "",
    ),
    (
        "aware_tried", "wrong sums of a library are not detected",
        "if (values[i] == static_cast<float>(expected)) continue;", "if (expected >= 0) continue;",
    ),
    (
        "aware_patience", "a library that never delivers uses up all of the time",
        "now + (deadline - now) / 2", "now + (deadline - now)",
    ),
)  # fmt: skip
