"""Which rows are a rank's: as many for each, contiguous; the first ranks have one more."""

from __future__ import annotations

from typing import Any

import numpy as np
from tensorflow.mpi._src.messaging import collectives
from tensorflow.mpi._src.runtime import group


def part(total: int, rank: int | None = None, size: int | None = None) -> tuple[int, int]:
    """(first, after the last) of `total`, of this rank if none is given."""
    rank = group.group_rank if rank is None else rank
    size = group.group_size if size is None else size
    each, more = divmod(total, size)
    return rank * each + min(rank, more), (rank + 1) * each + min(rank + 1, more)


def of_all_ranks(numbers: list[int], name: str) -> np.ndarray[Any, Any]:
    """The ranks' numbers, one rank's after another's; a meeting of all."""
    mine = np.array(numbers, np.int64)
    if not group.connected():
        return mine
    return collectives.run("allgather", mine, f"readers: {name}", of_script=True)
