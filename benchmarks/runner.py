"""Runs the cells of the table and records each result immediately.

Runs one cell after another, or the columns of a row at the same time, in turns.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import columns as columns_module
from benchmarks.columns import Column, Launch, not_applicable
from benchmarks.cores import round_trip
from benchmarks.processes import Pipes, Run, RunFailed, take_turns

ROOT = Path(__file__).resolve().parent.parent
# Kinds of columns whose ranks must end with the same model.
AVERAGING = ("ours", "sharded", "mwms", "horovod", "face")


@dataclass(frozen=True)
class Cell:
    """One run: a workload in a style, started as a column says; `repeat` counts from 0."""

    workload: str
    style: str
    column: Column
    repeat: int

    @property
    def key(self) -> tuple[str, str, str, int]:
        return (self.workload, self.style, self.column.name, self.repeat)


def cells(
    workloads: list[str], styles: list[str], columns: list[Column], repeats: int
) -> Iterator[Cell]:
    """All runs in order: the columns of a row are adjacent in time, and the row is repeated."""
    for repeat in range(repeats):
        for workload in workloads:
            for style in styles:
                for column in columns:
                    yield Cell(workload, style, column, repeat)


class Records:
    """The results so far, one JSON object per line of an append-only file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.all: list[dict[str, Any]] = []
        if path.exists():
            self.all = [json.loads(line) for line in path.read_text().splitlines() if line]

    def add(self, record: dict[str, Any]) -> None:
        self.all.append(record)
        with open(self.path, "a") as file:
            file.write(json.dumps(record) + "\n")

    def keys(self) -> set[tuple[str, str, str, int]]:
        return {(r["workload"], r["style"], r["column"], r["repeat"]) for r in self.all}

    def failed_before(self, cell: Cell) -> bool:
        """Whether this cell failed in an earlier repeat; it is then not run again."""
        return any(
            (r["workload"], r["style"], r["column"]) == cell.key[:3] and r["status"] != "ok"
            for r in self.all
        )


def run_all(
    planned: list[Cell],
    records: Records,
    launch: Launch,
    timeout: float,
    logs: Path,
    say: Callable[[str], None],
    after: Callable[[], object],
) -> None:
    """Runs the planned cells that have no record yet; calls `after` when a row has new results."""
    done = records.keys()
    has_horovod = functools.cache(lambda: columns_module.has_horovod(launch.horovod_python))

    def keep(cell: Cell, record: dict[str, Any]) -> None:
        identity = dict(zip(("workload", "style", "column", "repeat"), cell.key))
        records.add({**identity, "ranks": cell.column.ranks, **record})
        rate = f"{record['rate']:.2f} steps/s" if record["status"] == "ok" else record["status"]
        say(
            f"[{planned.index(cell) + 1}/{len(planned)}] {cell.workload} {cell.style} "
            f"{cell.column.name} #{cell.repeat + 1}: {rate} {record['note']}".rstrip()
        )

    for _, row in itertools.groupby(planned, lambda cell: (*cell.key[:2], cell.repeat)):
        before = len(records.all)
        runnable = []
        for cell in row:
            if cell.key in done or records.failed_before(cell):
                continue
            reason = not_applicable(cell.column, cell.style)
            if not reason and cell.column.kind == "horovod" and not has_horovod():
                reason = "not installed"
            if reason:
                keep(cell, {"status": "skipped", "note": reason})
            else:
                runnable.append(cell)
        for together in [runnable] if launch.turns else [[cell] for cell in runnable]:
            if not together:
                continue
            round_trips = [round_trip(columns_module.cores())]
            measured = _measure(together, launch, timeout, logs)
            round_trips.append(round_trip(columns_module.cores()))
            for cell, record in zip(together, measured):
                keep(cell, {**record, "round_trips": round_trips})
        if len(records.all) != before:
            after()


def _measure(
    together: list[Cell], launch: Launch, timeout: float, logs: Path
) -> list[dict[str, Any]]:
    """Returns a record per cell; several cells run at the same time, in turns."""
    try:
        with contextlib.ExitStack() as stack:
            folders, pipes, runs = [], [], []
            for cell in together:
                folders.append(Path(tempfile.mkdtemp(prefix="benchmark-")))
                stack.callback(shutil.rmtree, folders[-1], ignore_errors=True)
                if launch.turns:
                    # MultiWorkerMirroredStrategy exits if it misses heartbeats for a few seconds.
                    stops = cell.column.kind != "mwms"
                    pipes.append(Pipes(folders[-1], cell.column.ranks, stops=stops))
                    stack.callback(pipes[-1].close)
            for cell, folder in zip(together, folders):
                column = cell.column
                log = f"{cell.workload}.{cell.style}.{column.name.replace(':', '')}.{cell.repeat}"
                started = columns_module.processes(
                    column, cell.workload, cell.style, folder, launch
                )
                runs.append(stack.enter_context(Run(started, logs / f"{log}.log", ROOT)))
            deadline = time.monotonic() + timeout * len(together)
            if launch.turns:
                take_turns(list(zip(runs, pipes)), launch.turns, deadline)
            return [_record(*one, deadline) for one in zip(together, runs, folders)]
    except OSError as error:
        return [{"status": "fails", "note": " ".join(str(error).split())}] * len(together)


def _record(cell: Cell, run: Run, folder: Path, deadline: float) -> dict[str, Any]:
    try:
        run.wait(max(1.0, deadline - time.monotonic()))
        return summary(cell.column, read_results(folder, cell.column.ranks))
    except (RunFailed, OSError, ValueError) as error:
        return {"status": "fails", "note": " ".join(str(error).split())}


def read_results(folder: Path, ranks: int) -> list[dict[str, Any]]:
    """The results that the ranks wrote; raises RunFailed if one is missing."""
    paths = [folder / f"result.{rank}.json" for rank in range(ranks)]
    missing = [path.name for path in paths if not path.exists()]
    if missing:
        raise RunFailed(f"{', '.join(missing)} missing, although all processes succeeded")
    return [json.loads(path.read_text()) for path in paths]


def summary(column: Column, results: list[dict[str, Any]]) -> dict[str, Any]:
    """Combines the ranks' results into a record; its note lists reasons to doubt the figure."""
    notes = []
    pinned = [result["affinity"] for result in results]
    if any(len(cores) != 1 for cores in pinned):
        notes.append(f"not pinned to one core each: {pinned}")
    elif len({cores[0] for cores in pinned}) < min(len(pinned), len(columns_module.cores())):
        notes.append(f"ranks share cores: {pinned}")
    if column.kind in AVERAGING and len({result["digest"] for result in results}) > 1:
        notes.append("ranks ended with different models: nothing was averaged")
    rates = [result["steps"] / result["seconds"] for result in results]
    turn_rates = [statistics.mean(turn) for turn in zip(*(r["turn_rates"] for r in results))]
    return {
        "status": "ok",
        "rate": statistics.median(turn_rates),
        "rates": rates,
        "turn_rates": turn_rates,
        "steps": results[0]["steps"],
        "median_step": max(result["median_step"] for result in results),
        "peak_rss": max(result["peak_rss"] for result in results),
        "note": "; ".join(notes),
    }
