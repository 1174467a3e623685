"""`python -m benchmarks.start_up`: the times of a rank's start, until its second step.

    .venv/bin/python -m benchmarks.start_up                      off:2, ours:1 and ours:2, in turns

Prints a row for each part: medians over the runs, for the slowest rank. `off` is stock TensorFlow:
two independent processes. Parts that begin with "averaging:" are inside "import tensorflow", except
"averaging: modules", which the script imports before.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks import columns
from benchmarks.columns import Column
from benchmarks.processes import run
from benchmarks.runner import ROOT

MARK = "PARTS "


def one_run(column: Column) -> dict[str, float]:
    """Seconds for each part, on the slowest rank."""
    script = [sys.executable, "-m", "benchmarks.workloads.starts"]
    with tempfile.TemporaryDirectory() as name:
        log = Path(name) / "log"
        processes = columns.start(column, sys.executable, script, {"TF_CPP_MIN_LOG_LEVEL": "2"})
        run(processes, log, 120, ROOT)
        lines = log.read_text(errors="replace").splitlines()
    ranks = [json.loads(line[len(MARK) :]) for line in lines if line.startswith(MARK)]
    return {part: max(rank.get(part, 0.0) for rank in ranks) for part in ranks[0]}


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    found: dict[str, list[dict[str, float]]] = {column.name: [] for column in options.columns}
    for _ in range(options.runs):
        for column in options.columns:
            found[column.name].append(one_run(column))
    parts = dict.fromkeys(part for runs in found.values() for one in runs for part in one)
    print("| seconds | " + " | ".join(found) + " |")
    print("| --- |" + " --- |" * len(found))
    for part in parts:
        cells = [statistics.median(one.get(part, 0.0) for one in runs) for runs in found.values()]
        print(f"| {part} | " + " | ".join(f"{cell:.3f}" for cell in cells) + " |")
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.start_up",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--runs", type=int, default=5, help="runs per column (default 5)")
    parser.add_argument(
        "--columns",
        type=lambda text: [Column.parse(column) for column in text.split(",")],
        default=[Column.parse(column) for column in ("off:2", "ours:1", "ours:2")],
        help="ours:N or off:N (default off:2,ours:1,ours:2)",
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
