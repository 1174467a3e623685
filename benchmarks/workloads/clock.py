"""Code that all workload scripts share: options, rank, and clock.

Each rank uses its own clock, and the timed part contains no barrier or communication of this
module. Before that part, the processes of a run meet through files, so that they run at the same
time even if nothing else connects them, and agree on the number of steps that fills `--seconds`.

With `--turns`, several runs are alive at the same time and take turns of that many seconds, between
steps, so that a slowdown of the machine affects all of them. benchmarks/processes.py gives turns.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import resource
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.processes import PID_BYTES

WARM_UP = 10  # untimed steps for tracing, compilation and first touch of memory
PROBE = 5  # steps for estimating the number of timed steps
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
    lockstep: bool
    folder: Path
    turns: int
    rank: int
    size: int


def options() -> Options:
    """Parses the command line; the rank comes from the launcher, else from $RANK."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", required=True)
    parser.add_argument("--rows", type=int, default=200_000, help="rows of the embedding table")
    parser.add_argument("--seconds", type=float, default=4.0, help="length of the timed part")
    parser.add_argument("--jit", action="store_true", help="compile the step with XLA")
    parser.add_argument("--raw", action="store_true", help="tf.gradients, then apply_gradients")
    parser.add_argument("--whole", action="store_true", help="pass the data of all ranks to fit")
    parser.add_argument("--peer", choices=["none", "mwms", "horovod"], default="none")
    parser.add_argument("--lockstep", action="store_true", help="keep the ranks in the same step")
    parser.add_argument("--folder", type=Path, required=True, help="folder where processes meet")
    parser.add_argument(
        "--turns",
        type=int,
        default=0,
        help="number of turns of --seconds; 0: one turn, without pipes",
    )
    given = vars(parser.parse_args())
    environment = os.environ
    rank = environment.get("OMPI_COMM_WORLD_RANK", environment.get("RANK", "0"))
    size = environment.get("OMPI_COMM_WORLD_SIZE", environment.get("SIZE", "1"))
    return Options(**given, rank=int(rank), size=int(size))


def _write(path: Path, value: Any) -> None:
    """Writes JSON to a file atomically."""
    draft = path.with_name(f".{path.name}")
    draft.write_text(json.dumps(value))
    draft.rename(path)


def wait_for(options: Options, paths: list[Path]) -> None:
    """Waits until all processes of the run have written their files."""
    deadline = time.monotonic() + MEETING_TIMEOUT
    while missing := [path.name for path in paths if not path.exists()]:
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"rank {options.rank} waited {MEETING_TIMEOUT:g} s for {missing} in "
                f"{options.folder}: see the log of these ranks"
            )
        time.sleep(0.002)


def meet(options: Options, step_seconds: float) -> int:
    """Waits for all processes of the run; returns the number of steps to time, the same on all."""
    _write(options.folder / f"ready.{options.rank}.json", step_seconds)
    paths = [options.folder / f"ready.{rank}.json" for rank in range(options.size)]
    wait_for(options, paths)
    slowest = max(json.loads(path.read_text()) for path in paths)
    return max(5, round(options.seconds / slowest))


class Lockstep:
    """With `--lockstep`, no process starts a step before all have finished the previous one.

    Ranks that average in every step must wait for one another in this way, however cheap the
    average is. Each process counts its steps in a shared page and spins on the other counters.
    """

    def __init__(self, options: Options) -> None:
        self._own: mmap.mmap | None = None
        if not options.lockstep:
            return
        paths = [options.folder / f"steps.{rank}" for rank in range(options.size)]
        draft = options.folder / f".steps.{options.rank}"
        draft.write_bytes(bytes(mmap.PAGESIZE))
        draft.rename(paths[options.rank])
        wait_for(options, paths)
        pages = []
        for path in paths:
            with path.open("r+b") as file:
                pages.append(mmap.mmap(file.fileno(), mmap.PAGESIZE))
        self._own = pages.pop(options.rank)
        self._others = [memoryview(page).cast("Q") for page in pages]
        self._count = memoryview(self._own).cast("Q")

    def step_ended(self) -> None:
        """Waits until all processes have finished this step."""
        if self._own is None:
            return
        self._count[0] += 1
        count = self._count[0]
        deadline = time.monotonic() + MEETING_TIMEOUT
        for other in self._others:
            while other[0] < count:
                os.sched_yield()
                if time.monotonic() > deadline:
                    raise TimeoutError(f"a process did not finish step {count}: see the logs")


class Turns:
    """This process's turns: one to warm up, the timed ones, and one to finish in.

    Without `--turns` there is one timed turn, without pipes.
    """

    def __init__(self, options: Options) -> None:
        self.count = max(1, options.turns)
        self._pipes: tuple[int, int] | None = None
        if options.turns:
            names = (f"turn.{options.rank}", f"passed.{options.rank}")
            flags = (os.O_RDONLY, os.O_WRONLY)
            # The process that gives turns has both pipes open; if it has died, opening does not
            # block.
            turn, passed = (
                os.open(options.folder / name, flag | os.O_NONBLOCK)
                for name, flag in zip(names, flags)
            )
            os.set_blocking(turn, True)
            self._pipes = turn, passed

    def wait(self) -> None:
        """Waits for this process's turn without using a core."""
        if self._pipes is not None and not os.read(self._pipes[0], 1):
            raise RuntimeError("the process that gives turns has exited")

    def pass_on(self) -> None:
        """Ends this process's turn and waits for the next one; until then it is usually stopped."""
        if self._pipes is not None:
            os.write(self._pipes[1], os.getpid().to_bytes(PID_BYTES, "little"))
            self.wait()


def report(options: Options, turns: list[list[float]], digest: int) -> None:
    """Writes this rank's result; `turns`: seconds per timed step; `digest`: hash of its model."""
    times = [seconds for turn in turns for seconds in turn]
    result = {
        "rank": options.rank,
        "steps": len(times),
        "seconds": sum(times),
        "turn_rates": [len(turn) / sum(turn) for turn in turns],
        "median_step": float(np.median(times)),
        "affinity": sorted(os.sched_getaffinity(0)),
        "peak_rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "digest": digest,
    }
    _write(options.folder / f"result.{options.rank}.json", result)


def digest(values: np.ndarray) -> int:
    """A hash for comparing the values of two ranks."""
    return zlib.crc32(np.ascontiguousarray(values).tobytes())


def timed_loop(options: Options, step: Callable[[int], Any]) -> list[list[float]]:
    """Runs step(i) for i = 0, 1, ...: warm-up, meeting, timed turns; returns seconds by turn."""
    count = 0
    lockstep = Lockstep(options)

    def run(steps: int) -> list[float]:
        nonlocal count
        times = []
        begin = time.perf_counter()
        for _ in range(steps):
            step(count)
            lockstep.step_ended()
            count += 1
            end = time.perf_counter()
            times.append(end - begin)
            begin = end
        return times

    turns = Turns(options)
    turns.wait()
    run(WARM_UP)
    probe = run(PROBE)
    steps = meet(options, sum(probe) / len(probe))
    timed = []
    for _ in range(turns.count):
        turns.pass_on()
        run(SETTLE)
        timed.append(run(steps))
    turns.pass_on()
    return timed
