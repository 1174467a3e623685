"""Waits, events and lifetimes of core/gpu/direct/cuda_aware_collectives.cc, for mutations.py."""

from __future__ import annotations

# name, what it does, the line, what becomes of the line
CUDA_AWARE: tuple[tuple[str, str, str, str], ...] = (
    (
        "aware_coming", "MPI is given a chunk before it is there",
        "      status = gpu_->Query(slot->event, &ended);\n"
        "      if (!status.ok() || !ended) return status;\n      status = Share(*slot);",
        "      status = Share(*slot);",
    ),
    (
        "aware_put", "the event of a chunk is not recorded",
        "if (status.ok()) status = gpu_->Record(slot->event, stream);", "",
    ),
    (
        "aware_sharing", "shares are added up before they have come",
        "      if (!status.ok() || !ended) return status;\n      status = Add(*slot, terms);",
        "      if (!status.ok()) return status;\n      status = Add(*slot, terms);",
    ),
    (
        "aware_adding", "a sum is sent before it has ended",
        "      status = gpu_->Query(slot->event, &ended);\n"
        "      if (!status.ok() || !ended) return status;\n      status = Spread(*slot);",
        "      status = Spread(*slot);",
    ),
    (
        "aware_sum", "the event of a sum is not recorded",
        "return status.ok() ? gpu_->Record(slot.event, terms.stream) : status;", "return status;",
    ),
    (
        "aware_spreading", "a result is taken before the others' sums have come",
        "      if (!status.ok() || !ended) return status;\n"
        "      status = Take(*slot, terms.stream);",
        "      if (!status.ok()) return status;\n      status = Take(*slot, terms.stream);",
    ),
    (
        "aware_slot", "a chunk is put where another one is on its way",
        "if (started < chunks && next->stage == Stage::kFree) {", "if (started < chunks) {",
    ),
    (
        "aware_current", "the thread that calls MPI has no GPU",
        "Status status = gpu_->MakeCurrent();", "Status status;",
    ),
    (
        "aware_freed", "memory is freed to which MPI may still write",
        "if (slot.memory != nullptr && failure_.ok()) gpu_", "if (slot.memory != nullptr) gpu_",
    ),
    (
        "aware_kept", "the memory that MPI was given is kept for ever",
        "if (slot.memory != nullptr && failure_.ok()) gpu_->DeleteMemory(slot.memory);", "",
    ),
    (
        "aware_tried", "a library's wrong sums are not noticed",
        "if (values[i] == static_cast<float>(expected)) continue;", "if (expected >= 0) continue;",
    ),
    (
        "aware_patience", "a library that never delivers is given all of the time",
        "now + (deadline - now) / 2", "now + (deadline - now)",
    ),
)  # fmt: skip
