"""Broadcasts and gathers of variables and Python objects."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.mpi._src.horovod import basics, collectives, process_sets
from tensorflow.mpi._src.horovod.process_sets import ProcessSet, global_process_set
from tensorflow.mpi._src.messaging import collectives as arrays
from tensorflow.mpi._src.messaging import graph_collectives


def broadcast_variables(
    variables: Iterable[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> Any:
    """Assigns rank `root_rank`'s values on all ranks of the set: immediately in eager code,
    otherwise by the operation that is returned. All pass the same number of variables,
    tf.Variables or Keras 3's, in the same order."""
    _check_root(root_rank, process_set)
    assigned = []
    for variable in variables:
        value = tf.convert_to_tensor(variable)
        value = collectives.broadcast(value, root_rank, process_set=process_set)
        assigned.append(_assign(variable, value))
    return None if tf.executing_eagerly() else tf.group(*assigned)


def _check_root(root_rank: int, process_set: ProcessSet) -> None:
    if root_rank not in process_sets.members(process_set):
        raise ValueError(f"root_rank={root_rank} is not in {process_set}")


def _assign(variable: Any, value: Any) -> Any:
    done = variable.assign(value)
    return getattr(done, "op", done)


def broadcast_(
    variables: list[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Like broadcast_variables(), but returns the new values."""
    from tensorflow.python.ops import resource_variable_ops

    if len({resource_variable_ops.is_resource_variable(one) for one in variables}) > 1:
        raise ValueError(
            "All variables passed to broadcast_() should be of the same kind, resource or reference"
        )
    values = []
    for number, variable in enumerate(variables):
        label = name if name is None or number == 0 else f"{name} {number}"
        value = collectives.broadcast(variable, root_rank, label, process_set=process_set)
        assigned = _assign(variable, value)
        with tf.control_dependencies([] if tf.executing_eagerly() else [assigned]):
            values.append(
                variable.read_value() if hasattr(variable, "read_value") else tf.identity(variable)
            )
    return values


def broadcast_global_variables(root_rank: int) -> Any:
    """An operation that broadcasts a v1 graph's global variables. RuntimeError in eager code."""
    if tf.executing_eagerly():
        raise RuntimeError(
            "hvd.broadcast_global_variables() does not support eager execution. Please use "
            "`hvd.broadcast_variables(<model/optimizer variables>)` instead."
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Rank `root_rank`'s object, sent as a pickle; runs immediately, also in graph mode."""
    basics.state()
    _check_root(root_rank, process_set)
    mine = pickled(obj) if basics.rank() == root_rank else b""
    gathered = _gather(mine, "broadcast_object", name, process_set)
    data = gathered[process_sets.members(process_set).index(root_rank)]
    return obj if basics.rank() == root_rank else pickle.loads(data)


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """A function of one object that calls broadcast_object()."""
    return lambda obj: broadcast_object(obj, root_rank, session, name, process_set)


def allgather_object(
    obj: Any,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Each rank's object, in rank order, sent as pickles."""
    basics.state()
    return [
        pickle.loads(data) for data in _gather(pickled(obj), "allgather_object", name, process_set)
    ]


def pickled(obj: Any) -> bytes:
    """Pickles by cloudpickle if installed, which supports the script's functions and classes."""
    try:
        import cloudpickle as pickler
    except ImportError:
        pickler = pickle
    return bytes(pickler.dumps(obj))


def _gather(data: bytes, kind: str, name: str | None, process_set: ProcessSet) -> list[bytes]:
    """Gathers every member's bytes, outside any graph."""
    ranks = process_sets.members(process_set)
    if len(ranks) == 1:
        return [data]
    sizes = _allgather(np.array([len(data)], np.int64), f"hvd {kind} {name} sizes", ranks)
    everything = _allgather(np.frombuffer(data, np.uint8), f"hvd {kind} {name}", ranks).tobytes()
    ends = np.cumsum(sizes)
    return [everything[end - size : end] for end, size in zip(ends, sizes, strict=True)]


def _allgather(array: Any, name: str, ranks: list[int]) -> Any:
    if len(ranks) == basics.size():
        return arrays.run("allgather", array, name, of_script=True)
    with tf.init_scope():
        if tf.executing_eagerly():
            found = graph_collectives.horovod_collective(
                "allgather", tf.convert_to_tensor(array), name, ranks=ranks
            )
            return found.numpy()
    # A script of graphs and sessions: runs immediately, in a separate graph.
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        return session.run(
            graph_collectives.horovod_collective("allgather", tf.constant(array), name, ranks=ranks)
        )
