"""This process's rank and the size of its group.

Does not import TensorFlow, whose modules import hooks.py while they are being imported.
"""

from __future__ import annotations

from tensorflow.mpi._src.runtime import hooks

rank = 0  # 0 of 1 where averages are left to the script
size = 1
group_rank = 0  # among the engine's ranks, even if averages are left to the script
group_size = 1
fault = ""  # why the ranks could not be connected; set only for the doctor, which reports it
forked_from: int | None = None  # in a process that a rank has forked: that rank


def activate(this_rank: int, num_ranks: int, optimizer_ops: dict[str, tuple[str, bool]]) -> None:
    """Called once, by engine.py, when the engine has started."""
    global rank, size, group_rank, group_size
    rank, size = this_rank, num_ranks
    group_rank, group_size = rank, size
    hooks.apply_ops = optimizer_ops
    hooks.active = True


def deactivate_in_child() -> None:
    """Called in a process that this rank has forked, which does not average."""
    global rank, size, group_rank, group_size, forked_from
    forked_from, group_rank, group_size = group_rank, 0, 1
    rank, size = 0, 1
    hooks.active = False


def leave_to_script() -> None:
    """Called by engine.py: from here on each rank behaves like one process, except in collectives
    that the script calls."""
    global rank, size
    rank, size = 0, 1
    hooks.active = False


def connected() -> bool:
    """Whether this process is a rank, so that the script's collectives span the group, even if
    averages are left to the script."""
    return hooks.active or group_size > 1
