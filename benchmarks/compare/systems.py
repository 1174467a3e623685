"""Trains the model in one of the compared ways and reads the results."""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks import columns
from benchmarks.columns import Column
from benchmarks.processes import RunFailed, run
from benchmarks.runner import ROOT, read_results


@dataclass(frozen=True)
class System:
    """One way to train. `permute`: reverses the rows of each batch."""

    name: str
    column: Column
    permute: bool = False

    @classmethod
    def parse(cls, text: str) -> System:
        if text in ("one", "control"):
            return cls(text, Column("independent", 1), permute=text == "control")
        column = Column.parse(text)
        if column.kind in ("independent", "off", "sharded"):
            raise ValueError(f"system {text!r}: its processes would train separate models")
        return cls(text, column)


@dataclass
class Outcome:
    """The results of a run; if it failed, only the note is set.

    losses: per iteration, the mean over ranks; seconds: per iteration, of the slowest rank;
    values: the final checkpoint, by variable; identical: whether all ranks ended with these.
    """

    system: System
    note: str = ""
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    values: dict[str, np.ndarray] = field(default_factory=dict)
    identical: bool = True
    load: float = 0.0  # of the machine, before the run

    def words_per_second(self, skip: int, words: int) -> tuple[float, float, float]:
        """Median, 10th and 90th percentile over the iterations after the first `skip`."""
        rates = [words / seconds for seconds in self.seconds[skip:]]
        low, high = np.percentile(rates, [10, 90])
        return statistics.median(rates), float(low), float(high)


def train(system: System, options: argparse.Namespace, folder: Path) -> Outcome:
    """Runs benchmarks/compare/train.py; a failure becomes the outcome's note."""
    own = folder / system.name.replace(":", "")
    own.mkdir(exist_ok=True)
    if system.column.kind == "horovod" and not columns.has_horovod(options.horovod_python):
        return Outcome(system, note="not installed")
    python = options.horovod_python if system.column.kind == "horovod" else sys.executable
    script = [python, "-m", "benchmarks.compare.train"]
    script += ["--tokens", str(folder / "tokens.npy"), "--folder", str(own)]
    for name in ("optimizer", "iterations", "batch", "length", "vocabulary", "width", "seed"):
        script += [f"--{name}", str(getattr(options, name))]
    if system.permute:
        script.append("--permute")
    if system.column.kind in columns.PEERS:
        script += ["--peer", columns.PEERS[system.column.kind]]
    load = os.getloadavg()[0]
    try:
        run(columns.start(system.column, python, script, {}), own / "log", options.timeout, ROOT)
        results = read_results(own, system.column.ranks)
    except (RunFailed, OSError) as error:
        return Outcome(system, note=f"fails: {' '.join(str(error).split())}")
    outcome = Outcome(
        system,
        losses=[statistics.fmean(row) for row in zip(*(r["losses"] for r in results))],
        seconds=[max(row) for row in zip(*(r["seconds"] for r in results))],
        values=_read_checkpoint(own / "final"),
        identical=all(r["digests"] == results[0]["digests"] for r in results),
        load=load,
    )
    if not outcome.identical:
        outcome.note = "the ranks ended with different models"
    return outcome


def _read_checkpoint(path: Path) -> dict[str, np.ndarray]:
    import tensorflow as tf

    reader = tf.train.load_checkpoint(str(path))
    suffix = "/.ATTRIBUTES/VARIABLE_VALUE"
    return {
        name.removesuffix(suffix): reader.get_tensor(name)
        for name in sorted(reader.get_variable_to_shape_map())
        if name.endswith(suffix) and name != f"save_counter{suffix}"
    }
