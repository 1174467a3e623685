"""A rank's rows: contiguous, and as many on each rank, but the first ranks may have one more."""

from __future__ import annotations

from typing import Any

import numpy as np
from tensorflow.mpi._src.messaging import collectives
from tensorflow.mpi._src.runtime import group


def part(total: int) -> tuple[int, int]:
    """(the first row, the row after the last) of this rank's part of `total` rows."""
    rank, size = group.group_rank, group.group_size
    each, more = divmod(total, size)
    return rank * each + min(rank, more), (rank + 1) * each + min(rank + 1, more)


def gather_numbers(numbers: list[int], name: str) -> np.ndarray[Any, Any]:
    """Concatenates the ranks' numbers in rank order; all ranks must call this."""
    mine = np.array(numbers, np.int64)
    if not group.connected():
        return mine
    return collectives.run("allgather", mine, f"readers: {name}", of_script=True)
