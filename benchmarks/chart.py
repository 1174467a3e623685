"""`python -m benchmarks.chart TABLE.csv CHART.svg`: draws one style of a table as a bar chart.

`python -m benchmarks` writes TABLE.csv. Needs matplotlib (benchmarks/requirements.txt). The output
is reproducible.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path

_NAMES = {
    "lockstep": "independent processes that wait for each other",
    "ours": "this wheel",
    "off": "this wheel, averaging off",
    "mwms": "MultiWorkerMirroredStrategy",
    "horovod": "Horovod",
}
_COLORS = {
    "ours:2": "#1f6f8b",
    "mwms:2": "#c9b79c",
    "horovod:2": "#d9a5a0",
    "horovod:2+tuned": "#a65d57",
}


def _name(column: str) -> str:
    kind, _, variant = column.partition("+")
    name = _NAMES.get(kind.partition(":")[0], kind)
    return f"{name}, {variant}" if variant else name


def draw(table: Sequence[dict[str, str]], style: str, path: Path) -> None:
    """Writes an SVG with the shares of one style, by workload and column."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "benchmarks"})
    import matplotlib.pyplot as plt

    chosen = [
        row
        for row in table
        if row["style"] == style and row["share"] and not row["column"].startswith("independent")
    ]
    workloads = list(dict.fromkeys(row["workload"] for row in chosen))
    columns = list(dict.fromkeys(row["column"] for row in chosen))
    figure, axes = plt.subplots(figsize=(9, 3.6), layout="constrained")
    width = 0.84 / len(columns)
    for index, column in enumerate(columns):
        bars = [row for row in chosen if row["column"] == column]
        drawn = axes.bar(
            [workloads.index(row["workload"]) + index * width for row in bars],
            [float(row["share"]) for row in bars],
            width,
            label=_name(column),
            color=_COLORS.get(column),
        )
        axes.bar_label(drawn, [f"{float(row['share']):.2f}" for row in bars], fontsize=7)
    axes.axhline(1, color="silver", linewidth=0.8, zorder=0)
    bar_counts = [sum(row["workload"] == workload for row in chosen) for workload in workloads]
    middles = [i + width * (count - 1) / 2 for i, count in enumerate(bar_counts)]
    axes.set_xticks(middles, workloads)
    axes.set_ylabel("speed of a rank\n(1 = independent processes)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(ncols=len(columns), loc="lower center", bbox_to_anchor=(0.5, 1), frameon=False)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chart", description=__doc__)
    parser.add_argument("table", type=Path)
    parser.add_argument("chart", type=Path)
    parser.add_argument("--style", default="function", help="the rows to draw (default function)")
    options = parser.parse_args()
    with options.table.open(newline="") as lines:
        draw(list(csv.DictReader(lines)), options.style, options.chart)


if __name__ == "__main__":
    main()
