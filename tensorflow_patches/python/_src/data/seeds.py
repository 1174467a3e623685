"""All ranks shuffle Keras's arrays in rank 0's order.

Keras's data adapters shuffle arrays with ops whose seeds every rank draws separately. Inside the
adapters all ranks use rank 0's seeds. Other random ops are not affected.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
from typing import Any

import numpy as np
from tensorflow.mpi._src.messaging import collectives
from tensorflow.mpi._src.runtime import threads

_inside = threading.local()  # .adapter: a data adapter is being built on this thread
_numbers = itertools.count(1)  # of these shuffles, in program order


def adapter(active: bool) -> contextlib.AbstractContextManager[None]:
    """Around the construction of a dataset by a data adapter of Keras. If `active`, each shuffle in
    it is collective."""
    return threads.inside(_inside, adapter=active)


def of_rank_0(seed: Any, seed2: Any) -> tuple[Any, Any]:
    """See hooks.shuffle_seeds. The seeds to use in place of a shuffle's, which may be None."""
    if not getattr(_inside, "adapter", False):
        return seed, seed2
    if seed is None and seed2 is None:
        seed, seed2 = 0, random.SystemRandom().getrandbits(31) | 1  # 0 and 0 would be unseeded
    seeds = np.array([seed or 0, seed2 or 0], np.int64)
    seed, seed2 = collectives.run("broadcast", seeds, f"seeds of a shuffle {next(_numbers)}")
    return int(seed), int(seed2)
