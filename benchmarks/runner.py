"""Runs cells of the table one after another and keeps each result as soon as it is there."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import columns as columns_module
from benchmarks.columns import Column, Launch, not_applicable
from benchmarks.processes import RunFailed, run

ROOT = Path(__file__).resolve().parent.parent
AVERAGING = ("ours", "sharded", "mwms", "horovod")


@dataclass(frozen=True)
class Cell:
    """One run: a workload in a style, started as a column says, for the `repeat`-th time."""

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
    """All runs in their order: the columns of a row lie side by side in time, and are repeated."""
    for repeat in range(repeats):
        for workload in workloads:
            for style in styles:
                for column in columns:
                    yield Cell(workload, style, column, repeat)


class Records:
    """The results so far, one JSON object per line of a file that only grows."""

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
        """A cell that failed once is not tried again in later repeats."""
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
    """Runs what is planned and not yet recorded; calls `after` when a row is complete."""
    done = records.keys()
    horovod: bool | None = None
    for index, cell in enumerate(planned):
        if cell.key in done or records.failed_before(cell):
            continue
        reason = not_applicable(cell.column, cell.style)
        if not reason and cell.column.kind == "horovod":
            if horovod is None:
                horovod = columns_module.has_horovod(launch.horovod_python)
            reason = "" if horovod else "not installed"
        record = (
            {"status": "skipped", "note": reason}
            if reason
            else _measure(cell, launch, timeout, logs)
        )
        identity = dict(zip(("workload", "style", "column", "repeat"), cell.key))
        records.add({**identity, "ranks": cell.column.ranks, **record})
        rate = f"{record['rate']:.2f} steps/s" if record["status"] == "ok" else record["status"]
        say(
            f"[{index + 1}/{len(planned)}] {cell.workload} {cell.style} {cell.column.name} "
            f"#{cell.repeat + 1}: {rate} {record['note']}".rstrip()
        )
        following = planned[index + 1] if index + 1 < len(planned) else None
        if following is None or following.key[:2] != cell.key[:2]:
            after()


def _measure(cell: Cell, launch: Launch, timeout: float, logs: Path) -> dict[str, Any]:
    folder = Path(tempfile.mkdtemp(prefix="benchmark-"))
    name = ".".join(
        [cell.workload, cell.style, cell.column.name.replace(":", ""), str(cell.repeat)]
    )
    try:
        started = columns_module.processes(cell.column, cell.workload, cell.style, folder, launch)
        run(started, logs / f"{name}.log", timeout, ROOT)
        return summary(cell.column, read_results(folder, cell.column.ranks))
    except (RunFailed, OSError, ValueError) as error:
        return {"status": "fails", "note": " ".join(str(error).split())}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def read_results(folder: Path, ranks: int) -> list[dict[str, Any]]:
    """What every rank has written; RunFailed names those that wrote nothing."""
    paths = [folder / f"result.{rank}.json" for rank in range(ranks)]
    missing = [path.name for path in paths if not path.exists()]
    if missing:
        raise RunFailed(f"no {', '.join(missing)}, though all processes ended well")
    return [json.loads(path.read_text()) for path in paths]


def summary(column: Column, results: list[dict[str, Any]]) -> dict[str, Any]:
    """One record from the ranks' results; its note says what makes a reader doubt the figure."""
    notes = []
    pinned = [result["affinity"] for result in results]
    if any(len(cores) != 1 for cores in pinned):
        notes.append(f"not pinned to one core each: {pinned}")
    elif len({cores[0] for cores in pinned}) < min(len(pinned), len(columns_module.cores())):
        notes.append(f"ranks share cores: {pinned}")
    if column.kind in AVERAGING and len({result["digest"] for result in results}) > 1:
        notes.append("ranks end with different models: nothing was averaged")
    rates = [result["steps"] / result["seconds"] for result in results]
    return {
        "status": "ok",
        "rate": sum(rates) / len(rates),
        "rates": rates,
        "steps": results[0]["steps"],
        "median_step": max(result["median_step"] for result in results),
        "peak_rss": max(result["peak_rss"] for result in results),
        "note": "; ".join(notes),
    }
