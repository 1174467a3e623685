"""`python -m benchmarks.calls`: the overhead of a call of fit, evaluate or predict.

    .venv/bin/python -m benchmarks.calls                          one process and 2 ranks
    .venv/bin/python -m benchmarks.calls --python /other/python   and another build's ranks

Uses a small model on arrays. One process and the ranks, one core each, run in turns. The table has
the medians over the rounds for the slower rank, in milliseconds of CPU time and of wall-clock time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import columns
from benchmarks.columns import Column
from benchmarks.processes import RunFailed, run
from benchmarks.runner import ROOT

Times = dict[str, list[float]]  # by the name of a call: [CPU time, wall-clock time], in seconds


def one_run(column: Column, python: str) -> Times:
    """The times of the slower rank."""
    with tempfile.TemporaryDirectory() as name:
        script = [python, "-m", "benchmarks.workloads.calls", str(Path(name) / "times")]
        environment = {"TF_CPP_MIN_LOG_LEVEL": "2"}
        run(columns.start(column, python, script, environment), Path(name) / "log", 300, ROOT)
        ranks = [json.loads(path.read_text()) for path in Path(name).glob("times.*.json")]
    if len(ranks) != column.ranks:
        raise RunFailed(f"{len(ranks)} of {column.ranks} ranks finished")
    return {call: [max(rank[call][i] for rank in ranks) for i in (0, 1)] for call in ranks[0]}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.calls",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument(
        "--python", help="the Python of another build, measured in turns with this one"
    )
    options = parser.parse_args(arguments)
    ranks = Column("ours", options.ranks)
    kinds: dict[str, tuple[Any, str]] = {
        "one process": (Column("independent", 1), sys.executable),
        ranks.name: (ranks, sys.executable),
    }
    if options.python:
        kinds[f"{ranks.name}, other build"] = (ranks, options.python)
    found: dict[str, list[Times]] = {name: [] for name in kinds}
    for _ in range(options.rounds):
        for name, (column, python) in kinds.items():
            found[name].append(one_run(column, python))
    print("| call: ms of CPU time (wall-clock time) | " + " | ".join(kinds) + " |")
    print("| --- |" + " --- |" * len(kinds))
    for call in found["one process"][0]:
        cells = []
        for runs in found.values():
            cpu, wall = (1e3 * statistics.median(run[call][i] for run in runs) for i in (0, 1))
            cells.append(f"{cpu:.1f} ({wall:.1f})")
        print(f"| {call} | " + " | ".join(cells) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
