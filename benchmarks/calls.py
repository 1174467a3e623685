"""`python -m benchmarks.calls`: the overhead of a call of fit, evaluate or predict.

    .venv/bin/python -m benchmarks.calls                          one process and 2 ranks
    .venv/bin/python -m benchmarks.calls --python /other/python   and another build's ranks

Uses a small model on arrays. One process and the ranks, one core each, take turns. The table has
the medians over the turns for the slower rank, in milliseconds of CPU time and of wall-clock time.
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

Found = dict[str, list[float]]


def once(column: Column, python: str) -> Found:
    """{entry: [CPU time, wall-clock time]} of the slower rank."""
    with tempfile.TemporaryDirectory() as name:
        script = [python, "-m", "benchmarks.workloads.calls", str(Path(name) / "of")]
        environment = {"TF_CPP_MIN_LOG_LEVEL": "2"}
        run(columns.start(column, python, script, environment), Path(name) / "log", 300, ROOT)
        ranks = [json.loads(path.read_text()) for path in Path(name).glob("of.*.json")]
    if len(ranks) != column.ranks:
        raise RunFailed(f"{len(ranks)} of {column.ranks} ranks finished")
    return {entry: [max(rank[entry][i] for rank in ranks) for i in (0, 1)] for entry in ranks[0]}


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
    found: dict[str, list[Found]] = {name: [] for name in kinds}
    for _ in range(options.rounds):
        for name, (column, python) in kinds.items():
            found[name].append(once(column, python))
    print("| call: ms of CPU time (wall-clock time) | " + " | ".join(kinds) + " |")
    print("| --- |" + " --- |" * len(kinds))
    for entry in found["one process"][0]:
        cells = []
        for runs in found.values():
            processor, clock = (1e3 * statistics.median(r[entry][i] for r in runs) for i in (0, 1))
            cells.append(f"{processor:.1f} ({clock:.1f})")
        print(f"| {entry} | " + " | ".join(cells) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
