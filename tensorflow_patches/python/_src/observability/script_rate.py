"""TF_MPI_STATS=1: the rate that a script prints at its end, so that rank 0 can tell the sum.

tf_cnn_benchmarks ends with `total images/sec: 30.61`, which counts what its own process has done:
under mpirun every rank says so of itself. The last such line of each rank travels with its numbers,
and the report has the sum. What sums over ranks itself, as it does with Horovod, is left alone.
"""

from __future__ import annotations

import re
import sys
from typing import Any

from tensorflow.mpi._src.lifecycle import engine
from tensorflow.mpi._src.runtime import c_api, group, hooks

_LINE = re.compile(r"^(total images/sec): ([\d.]+)$", re.MULTILINE)

_rate = 0.0  # 0: none


def install() -> None:
    if group.size == 1 or not c_api.load().tfmpi_keeps_stats():
        return
    engine.when_left_to_script(_forget)
    write = sys.stdout.write

    def listened(text: str) -> int:
        found = _LINE.findall(text)
        if found:
            _note(float(found[-1][1]))
        return write(text)

    # print() calls the object's own `write`; whatever else asks of the stream is as it was.
    sys.stdout.write = listened  # type: ignore[method-assign]


def _note(rate: float) -> None:
    global _rate
    if hooks.active:
        _rate = rate


def _forget() -> None:
    global _rate
    _rate = 0.0


def at_end() -> None:
    """Before this rank joins."""
    if _rate:
        c_api.load().tfmpi_note_script_rate(_rate)


def lines(ranks: list[dict[str, Any]]) -> list[str]:
    """Of the report: the sum, and each rank's."""
    rates = [rank["script_rate"] for rank in ranks]
    if not any(rates):
        return []
    silent = [str(rank) for rank, rate in enumerate(rates) if not rate]
    each = ", ".join(f"{rate:.2f}" for rate in rates)
    if silent:
        return [f"  images/sec          not printed by rank {', '.join(silent)}: {each}"]
    return [f"  images/sec          {sum(rates):.2f} in total, by rank: {each}"]
