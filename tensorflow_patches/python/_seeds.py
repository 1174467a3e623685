"""One permutation on all ranks: unseeded shuffles draw from a seed that rank 0 has chosen.

Only where ranks must see the same data before each takes its part: `Dataset.shuffle` without a
seed, and the shuffles of Keras's own data adapters. A script that has set a seed is left alone: its
ranks draw what one process draws. All other random ops draw as they always do.
"""

from __future__ import annotations

import collections
import contextlib
import random
import sys
import threading
import zlib
from collections.abc import Iterator
from typing import Any

from tensorflow.mpi import _agree, _collectives, _hooks, config

_shared: int | None = None  # rank 0's choice; None: every rank draws for itself
_inside = threading.local()  # .adapter: one of Keras's data adapters is being built on this thread
_lock = threading.Lock()
_drawn: collections.Counter[str] = collections.Counter()  # by place in the program


def install() -> None:
    """Called once, on all ranks, when TensorFlow's libraries are loaded."""
    global _shared
    if _hooks.size == 1 or config.get("TF_MPI_SHARD") == "off":
        return
    import numpy as np

    chosen = np.array([random.SystemRandom().getrandbits(31)], np.int64)
    _shared = int(_collectives.run("broadcast", chosen, "shuffle seed", root=0)[0])


def dataset_seed() -> int | None:
    """For a dataset that shuffles without a seed: the same on all ranks. None: as stock."""
    return None if _shared is None else draw(_place())


def tensor_seed() -> int | None:
    """For tf.random.shuffle without a seed: as dataset_seed, inside Keras's data adapters only."""
    return dataset_seed() if getattr(_inside, "adapter", False) else None


@contextlib.contextmanager
def adapter() -> Iterator[None]:
    """While one of Keras's data adapters builds its dataset."""
    before = getattr(_inside, "adapter", False)
    _inside.adapter = True
    try:
        yield
    finally:
        _inside.adapter = before


def draw(place: str) -> int:
    """The next seed for `place`: what one rank draws elsewhere does not change it."""
    with _lock:
        number = _drawn[place]
        _drawn[place] += 1
    return zlib.crc32(f"{_shared} {place} {number}".encode()) | 1


def _place() -> str:
    """The line of the program that asks: the innermost one outside TensorFlow and Keras."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_library(frame):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _is_library(frame: Any) -> bool:
    module = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return module in ("tensorflow", "keras", "tf_keras", "contextlib", "functools")


class Random:
    """Stands for the module `random` in Keras's adapters of Python datasets."""

    def __getattr__(self, name: str) -> Any:
        return getattr(random, name)

    def shuffle(self, values: Any) -> None:
        """As random.shuffle, in one order on all ranks, which all call it at the same point."""
        if _shared is None:
            random.shuffle(values)
            return
        number = draw("random.shuffle")
        mine = zlib.crc32(repr(random.getstate()).encode())
        if len(set(_agree.headers(f"random.shuffle {number}", mine))) == 1:
            random.shuffle(values)  # the script has set a seed
        else:
            random.Random(number).shuffle(values)
