"""Variables as the ranks exchange them: by common names, with functions to read and write them.

`synchronize` is the exchange that gives all ranks rank 0's values. Its callers are
initial_broadcast.py, for eager variables, and compat_v1/sessions.py, for a Session's.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.mpi._src.messaging import control_plane
from tensorflow.mpi._src.runtime import c_api, group, log
from tensorflow.mpi._src.variables import large_variables, naming

# Parts of the names of random generators' variables, which are not synchronized: seeds that the
# ranks share keep them equal; with TF_MPI_SHARD=off they differ on purpose (keras/generators.py).
_RANDOM_STATE = ("StateVar", "seed_generator_state")

on_all_ranks: set[str] = set()  # handle names of synchronized variables, which every rank has


@dataclasses.dataclass
class State:
    """One variable with a value on this rank: its common key, and how to read and write it."""

    key: str  # name, dtype, shape
    read: Callable[[], Any]  # -> numpy array
    write: Callable[[Any], None]
    mark: Callable[[], None]  # tells the kernels that it is synchronized
    # Set for a variable that is not read or written as a whole.
    large: large_variables.EagerVariable | large_variables.FetchedVariable | None = None


def synchronize(label: str, states: list[State], uninitialized: int = 0) -> bool:
    """Gives all ranks rank 0's values of the variables that every rank has.

    Only variables that differ are sent. Every rank must call this, with its own variables, and the
    number of its variables that have no value yet. Returns whether that number is 0 on all ranks.
    """
    values = [None if state.large is not None else state.read() for state in states]
    mine: dict[str, list[int]] = collections.defaultdict(list)  # digests by State.key
    indices: dict[str, list[int]] = collections.defaultdict(list)  # in `states`
    for index, (state, value) in enumerate(zip(states, values)):
        digest = control_plane.digest(value) if state.large is None else state.large.digest()
        mine[state.key].append(digest)
        indices[state.key].append(index)
    manifests = control_plane.headers(f"{label} manifest", [mine, uninitialized])
    digests_by_rank = [theirs for theirs, _ in manifests]
    agreed = sorted(
        key
        for key, digests in mine.items()
        if all(len(theirs.get(key, ())) == len(digests) for theirs in digests_by_rank)
    )
    missing = sorted(set().union(*digests_by_rank) - set(agreed))
    if missing:
        log.debug(f"{label}: not on all ranks, so not changed: {', '.join(missing[:10])}")
    differing = [
        indices[key][n]
        for key in agreed
        for n in range(len(mine[key]))
        if any(theirs[key][n] != digests_by_rank[0][key][n] for theirs in digests_by_rank)
    ]
    small = [index for index in differing if states[index].large is None]
    received = control_plane.broadcast_arrays(label, [values[index] for index in small])
    if group.rank != 0:
        for index, value in zip(small, received):
            states[index].write(value)
    large = [states[index] for index in differing if states[index].large is not None]
    for number, state in enumerate(large):
        assert state.large is not None
        state.large.broadcast_from_rank_0(f"{label}: large {number}")
    for key in agreed:
        for index in indices[key]:
            states[index].mark()
    log.debug(
        f"{label}: {sum(len(mine[key]) for key in agreed)} of {len(states)} variables "
        f"synchronized with rank 0, {len(differing)} of them had differed"
    )
    return not any(count for _, count in manifests)


def is_random_state(name: str) -> bool:
    return any(word in name for word in _RANDOM_STATE)


def _synchronizable_dtype(handle: Any) -> Any:
    """The dtype of a variable to synchronize; None for all others, such as random states."""
    data = getattr(handle, "_handle_data", None)
    if data is None or not data.is_set or len(data.shape_and_type) != 1:
        return None
    container, name = naming.handle_name(handle)
    if container != "Anonymous" or is_random_state(name.rpartition("/")[0]):
        return None
    dtype = tf.as_dtype(data.shape_and_type[0].dtype)
    return None if dtype in (tf.string, tf.variant, tf.resource) else dtype


def is_uninitialized(handle: Any) -> bool:
    """Whether `handle` is a variable whose initializer has not run yet."""
    return (
        _synchronizable_dtype(handle) is not None
        and not tf.raw_ops.VarIsInitializedOp(resource=handle).numpy()
    )


def state_of(handle: Any, role: str) -> State | None:
    """The State of a variable; None without a value to synchronize. `role`: part of its key."""
    dtype = _synchronizable_dtype(handle)
    if dtype is None or is_uninitialized(handle):
        return None
    container, name = naming.handle_name(handle)
    debug_name = name.rpartition("/")[0]

    def read() -> Any:
        return tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype).numpy()

    def write(value: Any) -> None:
        tf.raw_ops.AssignVariableOp(resource=handle, value=value)

    def mark() -> None:
        c_api.load().tfmpi_mark_synchronized(container.encode(), name.encode(), b"")
        on_all_ranks.add(name)

    shape = tf.raw_ops.VariableShape(input=handle).numpy().tolist()
    large = (
        large_variables.EagerVariable(handle) if large_variables.is_large(dtype, shape) else None
    )
    return State(f"{debug_name} {role} {dtype.name} {shape}", read, write, mark, large)


def creation_number(handle: Any) -> int:
    """The id in an eager handle's name, which grows with each creation; -1 without one."""
    number = naming.handle_name(handle)[1].rpartition("/")[2]
    return int(number) if number.isdigit() else -1
