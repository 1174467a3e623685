"""`python -m benchmarks.soak`: memory, threads and descriptors of ranks that train for an hour.

    .venv/bin/python -m benchmarks.soak                          4 ranks and stock TensorFlow
    .venv/bin/python -m benchmarks.soak --seconds 300 --every 10 --kinds loop

`off` is stock TensorFlow. All columns and kinds run at the same time, with sleeps between steps, so
this needs only a part of a core and may run beside other work. Growth is measured from the first
record after a sixth of the time, when everything is traced and allocated, to the last one, for the
rank that grew most. The records, one line every `--every` seconds, stay in the folder.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import columns
from benchmarks.columns import Column
from benchmarks.processes import Run
from benchmarks.runner import ROOT

KINDS = ("loop", "fit")
WARM_UP = 1 / 6  # fraction of the time


def grown(records: list[dict[str, Any]]) -> dict[str, float]:
    """One rank's growth since the end of its warm-up (private and heap: bytes per step), and its
    memory, threads and files at the end."""
    last = records[-1]
    first = next(one for one in records if one["seconds"] >= WARM_UP * last["seconds"])
    steps = last["steps"] - first["steps"]
    return {
        "steps": steps,
        "resident": last["resident"],
        "percent": 100 * (last["resident"] / first["resident"] - 1),
        "private": (last["private"] - first["private"]) / max(1, steps),
        "heap": (last["heap"] - first["heap"]) / max(1, steps),
        "threads": last["threads"] - first["threads"],
        "files": last["files"] - first["files"],
        "all threads": last["threads"],
        "all files": last["files"],
    }


def row(column: Column, kind: str, folder: Path) -> str:
    ranks = [
        grown([json.loads(line) for line in path.read_text().splitlines()])
        for path in sorted(folder.glob("*.jsonl"))
    ]
    most = {name: max(rank[name] for rank in ranks) for name in ranks[0]}
    return (
        f"| {column.name} | {kind} | {most['steps']:.0f} | {most['resident'] / 1e6:.0f} | "
        f"{most['percent']:+.2f} % | {most['private']:+.1f} | {most['heap']:+.1f} | "
        f"{most['all threads']:.0f} ({most['threads']:+.0f}) | "
        f"{most['all files']:.0f} ({most['files']:+.0f}) |"
    )


def start(column: Column, kind: str, folder: Path, options: argparse.Namespace) -> Run:
    folder.mkdir(parents=True)
    script = [sys.executable, "-m", "benchmarks.workloads.soak", "--kind", kind]
    script += ["--seconds", str(options.seconds), "--every", str(options.every)]
    script += ["--rest", str(options.rest), "--folder", str(folder)]
    environment = {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_MPI_SHARD": "off" if kind == "loop" else "auto"}
    processes = columns.start(column, sys.executable, script, environment)
    return Run(processes, folder / "log", ROOT)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    folder = options.folder / time.strftime("soak-%Y-%m-%d-%H%M%S")
    print(folder, flush=True)
    cells = [(column, kind) for column in options.columns for kind in options.kinds]
    with contextlib.ExitStack() as stack:
        runs = [
            stack.enter_context(start(column, kind, folder / f"{column.name}-{kind}", options))
            for column, kind in cells
        ]
        deadline = time.monotonic() + 4 * options.seconds + 120
        for run in runs:
            run.wait(max(1.0, deadline - time.monotonic()))
    print(
        "| column | kind | steps | resident, MB | grown | private, B/step | heap, B/step | threads "
        "| files |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for column, kind in cells:
        print(row(column, kind, folder / f"{column.name}-{kind}"))
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--seconds", type=float, default=3600, help="length of the run (default 3600)"
    )
    parser.add_argument(
        "--every", type=float, default=60, help="seconds between records (default 60)"
    )
    parser.add_argument(
        "--rest", type=float, default=0.05, help="sleep after a step (default 0.05)"
    )
    parser.add_argument("--kinds", type=lambda text: text.split(","), default=list(KINDS))
    parser.add_argument(
        "--columns",
        type=lambda text: [Column.parse(column) for column in text.split(",")],
        default=[Column.parse("ours:4"), Column.parse("off:4")],
        help="ours:N or off:N (default ours:4,off:4)",
    )
    parser.add_argument("--folder", type=Path, default=ROOT / "benchmarks" / "results")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
