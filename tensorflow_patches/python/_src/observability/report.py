"""TF_MPI_STATS=1: the report that rank 0 prints once all ranks have ended.

The numbers are those of core/observability/stats.h.

A gradient is outstanding from its submission until its average is available. Communication is
exposed while a gradient is outstanding and no other gradient of the same step is still to come:
nothing of the backward pass is left to hide it. The rest of the time in which a gradient is
outstanding is hidden. Both include the time that a rank waits for its peers.

The table of the input of fit, evaluate, predict and tf.mpi.shard (data/input_stats.py) shows for
each rank the samples that its pipelines have made, the samples in the batches that it has received,
how long it has waited for these batches, and the bytes that its process has read since the start of
the first such input.
"""

from __future__ import annotations

import json
import sys
from typing import Any

_BAR = 30  # characters of the longest bar

_input: list[dict[str, Any]] = []  # by rank


def note_input(ranks: list[dict[str, Any]]) -> None:
    """Stores the ranks' input statistics (see input_stats.gather) for `show`."""
    _input[:] = ranks


def show(report: str) -> None:
    """Prints `report`, the JSON of tfmpi_stats_report, unless it is empty."""
    if report:
        lines = format_report(json.loads(report)) + _input_table(_input)
        print("\n".join(lines), file=sys.stderr, flush=True)


def format_report(report: dict[str, Any]) -> list[str]:
    """The lines of a report: totals over ranks, then rank 0's operations, then the ranks."""
    ranks, first = report["ranks"], report["ranks"][0]
    steps = max(1, first["steps"])
    lines = [
        f"tensorflow.mpi: communication of {len(ranks)} rank{'s' * (len(ranks) > 1)}",
        f"  steps               {first['steps']} ({first['gradients'] / steps:.4g} gradients each)",
        f"  averaged            {_bytes(first['bytes'])} per rank in {first['requests']} requests",
        f"  operations          {first['operations']}, {first['operations'] / steps:.3g} per step",
        f"  rounds              {first['rounds']}, {first['rounds'] / steps:.3g} per step",
        f"  messages of a rank  {_per_rank(ranks, 'messages_sent') / steps:.3g} per step, "
        f"{_bytes(_per_rank(ranks, 'message_bytes') / steps)}; rank 0 sent "
        f"{first['messages_sent'] / steps:.3g}",
        "  per step and rank   "
        + ", ".join(f"{key} {_time(_per_rank(ranks, key) / steps)}" for key in _STAGES),
        f"  exposed             {_time(_per_rank(ranks, 'exposed') / steps)} per step and rank",
        f"  hidden              {_time(_per_rank(ranks, 'hidden') / steps)} per step and rank",
    ]
    lines += _histogram("allreduces by size", first["by_bytes"], _size_label)
    lines += _histogram("allreduces by tensors fused", first["by_tensors"], _tensors_label)
    return lines + _slowest(report, steps)


_STAGES = ("pack", "reduce", "unpack", "apply")


def _per_rank(ranks: list[dict[str, Any]], key: str) -> float:
    return float(sum(rank[key] for rank in ranks)) / len(ranks)


def _slowest(report: dict[str, Any], steps: int) -> list[str]:
    """Which ranks the others waited for: rank 0 notes which rank is last with a gradient."""
    ranks, last = report["ranks"], report["last_ready"]
    times = sum(one["times"] for one in last)
    if not times:
        return []
    slowest = max(range(len(last)), key=lambda rank: last[rank]["seconds"])
    lines = [
        f"  slowest             rank {slowest}",
        "  rank  last to be ready   by, on average   waits, on average   exposed    hidden",
    ]
    for rank, (own, one) in enumerate(zip(ranks, last)):
        behind = one["seconds"] / max(1, one["times"])
        lines.append(
            f"  {rank:>4} {100 * one['times'] / times:>16.0f}% {_time(behind):>16}"
            f" {_time(own['wait'] / max(1, own['waits'])):>20}"
            f" {_time(own['exposed'] / steps):>9} {_time(own['hidden'] / steps):>9}"
        )
    return lines


def _input_table(ranks: list[dict[str, Any]]) -> list[str]:
    """The table of the input; [] if no rank had input."""
    lines = [
        f"  {one['rank']:>4} {one['made']:>14} {one['used']:>11}"
        f" {one['microseconds'] / 1e6:>15.3f} s {_bytes(one['read']):>20}"
        for one in ranks
    ]
    head = "  rank   samples made        used   waits for them  read by its process"
    return [head, *lines] if lines else []


def _histogram(title: str, counts: list[int], label: Any) -> list[str]:
    if not any(counts):
        return []
    used = [i for i, count in enumerate(counts) if count]
    lines = [f"  {title}, on rank 0"]
    for i in range(used[0], used[-1] + 1):
        bar = "#" * -(-_BAR * counts[i] // max(counts))
        lines.append(f"    {label(i, i + 1 == len(counts)):>16} {counts[i]:>9} {bar}".rstrip())
    return lines


def _size_label(bucket: int, last: bool) -> str:
    return f"> {_bytes(4096 * 4 ** (bucket - 1))}" if last else f"<= {_bytes(4096 * 4**bucket)}"


def _tensors_label(bucket: int, last: bool) -> str:
    low, high = 2**bucket, 2 ** (bucket + 1) - 1
    return f">= {low}" if last else str(low) if low == high else f"{low} to {high}"


def _bytes(count: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1024 or unit == "GB":
            break
        count /= 1024
    return f"{count:.4g} {unit}"


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"
