"""`python -m benchmarks --extras`: how much each extra of docs/extras.md speeds up whole steps.

On the rows where an extra should matter most, ranks with all extras take turns with ranks with all
but that one.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.columns import Column
from benchmarks.runner import Cell

BASE = "ours:2"
# By extra, the rows (workload, style) where it should matter most.
WHERE = {
    "kept_memory": (("dense100mb", "compiled"), ("dense100mb", "v1")),
    "scatter_in_place": (("embedding", "fit"),),
    "rows_ahead": (("embedding", "v1"), ("embedding", "fit")),
    "compiled_scatter": (("embedding", "compiled"),),
    "divided_updates": (("embedding", "v1"),),
    "distinct_rows": (("embedding", "v1"),),
    "response_bypass": (("layers200", "v1"), ("layers200", "compiled")),
    "streaming_stores": (("dense100mb", "v1"),),
    "synchronous_updates": (("layers200", "v1"),),
}


def variant(extra: str) -> str:
    """The name of the variant with all extras except `extra`."""
    return f"without_{extra}"


def variants() -> dict[str, dict[str, str]]:
    """The variants by name, in the form of --variant."""
    return {variant(extra): {"TF_MPI_EXTRAS": f"-{extra}"} for extra in WHERE}


def cells(repeats: int) -> Iterator[Cell]:
    """A row per workload and style, with a column for each extra that should matter there."""
    rows: dict[tuple[str, str], list[str]] = {}
    for extra, places in WHERE.items():
        for place in places:
            rows.setdefault(place, []).append(extra)
    for repeat in range(repeats):
        for (workload, style), extras in rows.items():
            names = ["independent:2", BASE, *(f"{BASE}+{variant(extra)}" for extra in extras)]
            for name in names:
                yield Cell(workload, style, Column.parse(name), repeat)


def to_markdown(records: Sequence[dict[str, Any]]) -> str:
    """One line per extra and row: the speed of a turn with the extra, relative to the adjacent turn
    without it, as median and quartiles over the turns; and the standard error of the mean."""
    rates: dict[tuple[str, str, str], list[float]] = {}
    for record in records:
        if record["status"] == "ok":
            key = (record["workload"], record["style"], record["column"])
            rates.setdefault(key, []).extend(record["turn_rates"])
    lines = [
        "| extra | workload | style | with / without | standard error | turns |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for extra, places in WHERE.items():
        for workload, style in places:
            with_it = rates.get((workload, style, BASE), [])
            without = rates.get((workload, style, f"{BASE}+{variant(extra)}"), [])
            ratios = [one / two for one, two in zip(with_it, without)]
            if len(ratios) < 2:
                continue
            low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
            error = statistics.stdev(ratios) / len(ratios) ** 0.5
            lines.append(
                f"| {extra} | {workload} | {style} | {middle:.3f} ({low:.2f}..{high:.2f}) "
                f"| {error:.3f} | {len(ratios)} |"
            )
    return "\n".join(lines) + "\n"
