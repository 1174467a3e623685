"""One permutation on all ranks of the arrays that Keras is given: rank 0's.

Keras's data adapters shuffle arrays with ops whose seeds are drawn as they are made, by every rank
for itself. Inside them all ranks take rank 0's seeds. All other random ops draw as they always do.
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
_numbers = itertools.count(1)


def adapter(active: bool) -> contextlib.AbstractContextManager[None]:
    """While one of Keras's data adapters builds its dataset; all ranks are at the same point."""
    return threads.inside(_inside, adapter=active)


def of_rank_0(seed: Any, seed2: Any) -> tuple[Any, Any]:
    """See hooks.shuffle_seeds. Of the seeds that an op has, None for none, those that it takes."""
    if not getattr(_inside, "adapter", False):
        return seed, seed2
    if seed is None and seed2 is None:
        seed, seed2 = 0, random.SystemRandom().getrandbits(31) | 1
    seeds = np.array([seed or 0, seed2 or 0], np.int64)
    seed, seed2 = collectives.run("broadcast", seeds, f"seeds of a shuffle {next(_numbers)}")
    return int(seed), int(seed2)
