"""What every workload script shares: its options, its rank, and the clock.

The clock is each rank's own: no barrier and no communication in the timed part.  Before it, the
processes of a run meet through files, so that they run side by side even where nothing else
connects them, and agree on a number of steps that takes `--seconds`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

WARM_UP = 10  # steps before anything is timed: tracing, compilation, first touch of memory
PROBE = 5  # steps from which the number of timed steps is estimated
SETTLE = 3  # untimed steps after the meeting
MEETING_TIMEOUT = 150.0  # seconds that a process waits for its peers before the timed part


@dataclass(frozen=True)
class Options:
    """The command line and the environment of one process of a run."""

    workload: str
    rows: int
    seconds: float
    jit: bool
    raw: bool
    whole: bool
    peer: str
    folder: Path
    rank: int
    size: int


def options() -> Options:
    """Parses the command line; the rank is the launcher's, else $RANK."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", required=True)
    parser.add_argument("--rows", type=int, default=200_000, help="of the embedding table")
    parser.add_argument("--seconds", type=float, default=4.0, help="of the timed part")
    parser.add_argument("--jit", action="store_true", help="compile the step with XLA")
    parser.add_argument("--raw", action="store_true", help="tf.gradients, then apply_gradients")
    parser.add_argument("--whole", action="store_true", help="fit is given all ranks' data")
    parser.add_argument("--peer", choices=["none", "mwms", "horovod"], default="none")
    parser.add_argument("--folder", type=Path, required=True, help="where processes meet")
    given = vars(parser.parse_args())
    environment = os.environ
    rank = environment.get("OMPI_COMM_WORLD_RANK", environment.get("RANK", "0"))
    size = environment.get("OMPI_COMM_WORLD_SIZE", environment.get("SIZE", "1"))
    return Options(**given, rank=int(rank), size=int(size))


def _write(path: Path, value: Any) -> None:
    """Writes JSON that a reader sees whole or not at all."""
    draft = path.with_name(f".{path.name}")
    draft.write_text(json.dumps(value))
    draft.rename(path)


def meet(options: Options, step_seconds: float) -> int:
    """Waits for all processes of the run; returns the number of steps to time, alike on all."""
    _write(options.folder / f"ready.{options.rank}.json", step_seconds)
    paths = [options.folder / f"ready.{rank}.json" for rank in range(options.size)]
    deadline = time.monotonic() + MEETING_TIMEOUT
    while missing := [path.name for path in paths if not path.exists()]:
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"rank {options.rank} waited {MEETING_TIMEOUT:g} s for {missing} in "
                f"{options.folder}: see the log for what these ranks did"
            )
        time.sleep(0.002)
    slowest = max(json.loads(path.read_text()) for path in paths)
    return max(5, round(options.seconds / slowest))


def report(options: Options, times: list[float], digest: int) -> None:
    """Writes this rank's result: `times` are seconds per timed step, `digest` is of its model."""
    result = {
        "rank": options.rank,
        "steps": len(times),
        "seconds": sum(times),
        "median_step": float(np.median(times)),
        "affinity": sorted(os.sched_getaffinity(0)),
        "peak_rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "digest": digest,
    }
    _write(options.folder / f"result.{options.rank}.json", result)


def digest(values: np.ndarray) -> int:
    """A number that tells whether two ranks hold the same values."""
    return zlib.crc32(np.ascontiguousarray(values).tobytes())


def timed_loop(options: Options, step: Callable[[int], Any]) -> list[float]:
    """Runs step(i), i = 0, 1, ...: warm-up, meeting, timed part; returns seconds per timed step."""
    count = 0

    def run(steps: int) -> list[float]:
        nonlocal count
        times = []
        begin = time.perf_counter()
        for _ in range(steps):
            step(count)
            count += 1
            end = time.perf_counter()
            times.append(end - begin)
            begin = end
        return times

    run(WARM_UP)
    probe = run(PROBE)
    steps = meet(options, sum(probe) / len(probe))
    run(SETTLE)
    return run(steps)
