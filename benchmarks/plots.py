"""The table as bar charts; does nothing without matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any


def draw(table: Sequence[dict[str, Any]], folder: Path) -> list[Path]:
    """Writes a PNG per style: shares of the ideal by workload and column, with their spread."""
    try:
        import matplotlib
    except ImportError:
        return []
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    written = []
    for style in dict.fromkeys(row["style"] for row in table):
        chosen = [
            row
            for row in table
            if row["style"] == style and row["share"] != "" and not _is_ideal(row["column"])
        ]
        if not chosen:
            continue
        workloads = list(dict.fromkeys(row["workload"] for row in chosen))
        names = list(dict.fromkeys(row["column"] for row in chosen))
        figure, axes = plt.subplots(figsize=(2 + 1.6 * len(workloads), 4), layout="constrained")
        width = 0.8 / len(names)
        for index, name in enumerate(names):
            bars = [row for row in chosen if row["column"] == name]
            places = [workloads.index(row["workload"]) + index * width for row in bars]
            heights = [row["share"] for row in bars]
            below = [row["share"] - row["share_min"] for row in bars]
            above = [row["share_max"] - row["share"] for row in bars]
            axes.bar(places, heights, width, yerr=[below, above], capsize=2, label=name)
        axes.axhline(1.0, color="black", linewidth=0.8)
        axes.set_xticks([i + 0.4 - width / 2 for i in range(len(workloads))], workloads)
        axes.set_ylabel("steps per second and rank,\nshare of independent processes")
        axes.set_title(style)
        axes.legend(fontsize="small", ncols=2)
        path = folder / f"shares.{style}.png"
        figure.savefig(path, dpi=120)
        plt.close(figure)
        written.append(path)
    return written


def _is_ideal(column: str) -> bool:
    return column.startswith("independent:") and "+" not in column
