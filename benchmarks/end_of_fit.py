"""`python -m benchmarks.end_of_fit`: the delay at the end of `fit` and of a loop over tf.data.

    .venv/bin/python -m benchmarks.end_of_fit                    20 runs of each, of 25 s or more
    .venv/bin/python -m benchmarks.end_of_fit --columns off:2    with averaging off

Each run trains on ranks with one core each and measures the time from the end of the last epoch, or
of the last step, until `fit`, or the loop, returns; the slowest rank counts. Prints a line per run
and a table at the end. `off` is stock TensorFlow. Steps sleep, so this needs a tenth of a core.
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
from benchmarks.processes import RunFailed, run
from benchmarks.runner import ROOT

KINDS = ("fit", "loop")


def runs(column: Column, kind: str, times: int, seconds: float) -> list[tuple[float, float]]:
    """(shortest training time, longest end) over the ranks, in seconds, for each run
    after one start of the ranks."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script = [sys.executable, "-m", "benchmarks.workloads.ends", "--kind", kind]
        script += ["--seconds", str(seconds), "--times", str(times), "--folder", name]
        environment = {"TF_CPP_MIN_LOG_LEVEL": "2"}
        processes = columns.start(column, sys.executable, script, environment)
        # Stock iterators may end up to 60 s late: docs/decisions/032-end-of-iterators.md.
        run(processes, folder / "log", 60 + times * (2 * seconds + 60), ROOT)
        ranks = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    if len(ranks) != column.ranks:
        raise RunFailed(f"{len(ranks)} of {column.ranks} ranks finished")
    return [
        (min(trained for trained, _ in run_of_all), max(end for _, end in run_of_all))
        for run_of_all in zip(*ranks, strict=True)
    ]


def row(column: Column, kind: str, options: argparse.Namespace) -> str:
    """A row of the table; prints a line for each run."""
    found = []
    for _ in range(options.starts):
        for trained, end in runs(column, kind, options.times, options.seconds):
            print(f"{column.name} {kind}: {trained:.1f} s, end {end:.3f} s", flush=True)
            found.append((trained, end))
    trainings, ends = zip(*found, strict=True)
    return (
        f"| {column.name} | {kind} | {len(ends)} | {min(trainings):.1f}..{max(trainings):.1f} | "
        f"{statistics.median(ends):.3f} | {max(ends):.3f} |"
    )


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    rows = [row(column, kind, options) for column in options.columns for kind in options.kinds]
    print("\n| column | kind | runs | training, s | median end, s | longest end, s |")
    print("| --- | --- | --- | --- | --- | --- |")
    print("\n".join(rows))
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.end_of_fit",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--starts", type=int, default=4, help="how often to start the ranks (default 4)"
    )
    parser.add_argument("--times", type=int, default=5, help="runs per start (default 5)")
    parser.add_argument(
        "--seconds", type=float, default=25, help="training time per run (default 25)"
    )
    parser.add_argument("--kinds", type=lambda text: text.split(","), default=list(KINDS))
    parser.add_argument(
        "--columns",
        type=lambda text: [Column.parse(column) for column in text.split(",")],
        default=[Column.parse("ours:2")],
        help="ours:N or off:N (default ours:2)",
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
