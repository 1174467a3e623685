"""The distance between two cores: the time for a number to travel from one to the other and back.

On a virtual machine it may change from minute to minute, probably because the host moves the cores
to the same chiplet or to different ones. This affects communication but not computation.
"""

from __future__ import annotations

import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

_ASK, _ANSWER = 0, 32  # indices of 64-bit numbers that lie on different cache lines
_POLLS = 10_000_000  # between two looks at the clock: some tenths of a second
_BATCH = 500


def round_trip(cores: Sequence[int], seconds: float = 0.1) -> float | None:
    """The nanoseconds of a round trip between the first two cores; None if there is only one.

    The overhead of Python's loops, about 0.2 us, is included.
    """
    if len(cores) < 2:
        return None
    before = os.sched_getaffinity(0)
    with tempfile.NamedTemporaryFile() as file:
        file.write(bytes(mmap.PAGESIZE))
        file.flush()
        with mmap.mmap(file.fileno(), mmap.PAGESIZE) as memory:
            numbers = memoryview(memory).cast("Q")
            other = [sys.executable, __file__, file.name, str(cores[1])]
            with subprocess.Popen(other) as process:
                try:
                    os.sched_setaffinity(0, {cores[0]})
                    return _measure(numbers, seconds)
                finally:
                    os.sched_setaffinity(0, before)
                    process.kill()
                    numbers.release()


def _measure(numbers: memoryview, seconds: float) -> float:
    _ask(numbers, 1, wait=60)  # until the other process has started
    first, batches = 2, []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        begin = time.perf_counter_ns()
        for number in range(first, first + _BATCH):
            _ask(numbers, number)
        first += _BATCH
        batches.append((time.perf_counter_ns() - begin) / _BATCH)
    return statistics.median(batches)


def _ask(numbers: memoryview, number: int, wait: float = 1) -> None:
    numbers[_ASK] = number
    end = time.monotonic() + wait
    while True:
        for _ in range(_POLLS):
            if numbers[_ANSWER] == number:
                return
        if time.monotonic() > end:
            raise TimeoutError("the process on the other core does not answer")


def _answer(path: str, core: int) -> None:
    """Runs until it is killed or its parent has exited."""
    os.sched_setaffinity(0, {core})
    parent = os.getppid()
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), mmap.PAGESIZE) as memory:
        numbers = memoryview(memory).cast("Q")
        last = 0
        while os.getppid() == parent:
            for _ in range(_POLLS):
                number = numbers[_ASK]
                if number != last:
                    numbers[_ANSWER] = last = number
        numbers.release()


if __name__ == "__main__":
    _answer(sys.argv[1], int(sys.argv[2]))
