"""Horovod's collectives on tensors, with their gradients, in eager code, tf.function and graphs.

Each is built from tf.mpi's collectives: alltoall is an allgather of which a rank keeps its slices,
reducescatter an allreduce of which it keeps its rows. These two move more bytes than Horovod's own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.mpi._src.horovod import adasum, basics, process_sets
from tensorflow.mpi._src.horovod.process_sets import ProcessSet, global_process_set
from tensorflow.mpi._src.messaging import collectives as arrays
from tensorflow.mpi._src.messaging import graph_collectives
from tensorflow.mpi._src.runtime import group

# As Horovod numbers them.
Average, Sum, Adasum, Min, Max, Product = 0, 1, 2, 3, 4, 5
_OPS = {Sum: "sum", Min: "min", Max: "max", Product: "product"}


def chosen_op(op: Any, average: Any) -> int:
    """The reduction that the arguments `op` and, in older scripts, `average` select."""
    if op is not None:
        if average is not None:
            raise ValueError(
                "The op parameter supersedes average. Please provide only one of them."
            )
        return int(op)
    return Sum if average is not None and not average else Average


def run(kind: str, tensor: Any, name: str | None, process_set: ProcessSet, **more: Any) -> Any:
    """Runs a collective of tf.mpi over the ranks of `process_set`; a single rank gets a copy.
    Raises tf.errors.InvalidArgumentError on a rank that is not in the set."""
    basics.state()
    tensor = tf.convert_to_tensor(tensor)
    ranks = process_sets.members(process_set)
    if not process_set.included():
        raise tf.errors.InvalidArgumentError(
            None, None, f"hvd.{kind}: rank {basics.rank()} is not in {process_set}"
        )
    if len(ranks) == 1:
        return tf.identity(tensor)
    subset = ranks if len(ranks) < basics.size() else []
    return graph_collectives.horovod_collective(kind, tensor, name, ranks=subset, **more)


def _scaled(tensor: Any, factor: float) -> Any:
    """Scales integers in float64, half and bfloat16 in float32, and rounds once."""
    if factor == 1.0:
        return tensor
    if tensor.dtype in (tf.float16, tf.bfloat16):
        wide = tf.float32
    else:
        wide = tensor.dtype if tensor.dtype.is_floating or tensor.dtype.is_complex else tf.float64
    # tf.cast would first convert a Python number to float32.
    scale = tf.cast(factor, wide) if tf.is_tensor(factor) else tf.constant(factor, wide)
    return tf.cast(tf.cast(tensor, wide) * scale, tensor.dtype)


def _with_gradient(function: Callable[[Any], Any], gradient: Callable[[Any], Any]) -> Any:
    """`function`, which takes one tensor, with `gradient` as its gradient function."""

    @tf.custom_gradient
    def both(tensor: Any) -> Any:
        return function(tensor), gradient

    return both


def allreduce(
    tensor: Any,
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduces prescale_factor * tensor over the ranks by `op`, then multiplies by postscale_factor.

    As in Horovod, the gradient is the same reduction of the upstream gradient.
    """
    if op not in (Average, Sum, Adasum, Min, Max, Product):
        raise ValueError(
            f"hvd.allreduce: op={op!r} is unknown; accepted: Average, Sum, Adasum, Min, Max, "
            "Product"
        )
    size = len(process_sets.members(process_set))

    def reduce(value: Any, name: str | None) -> Any:
        value = _scaled(value, prescale_factor)
        if op == Adasum:
            rows = run("allgather", value[tf.newaxis], name, process_set)
            return _scaled(adasum.combine(rows, size), postscale_factor)
        if op == Average:
            if value.dtype.is_floating or value.dtype.is_complex:
                value = run("allreduce", value, name, process_set, op="average")
                return _scaled(value, postscale_factor)
            value = run("allreduce", value, name, process_set, op="sum")
            return _scaled(value, postscale_factor / size)
        value = run("allreduce", value, name, process_set, op=_OPS[op])
        return _scaled(value, postscale_factor)

    gradient_name = name and f"{name} gradient"
    return _with_gradient(lambda value: reduce(value, name), lambda up: reduce(up, gradient_name))(
        tf.convert_to_tensor(tensor)
    )


def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Concatenates the ranks' tensors along the first dimension, which may differ by rank.

    The gradient is the ranks' average of the upstream gradients of this rank's rows.
    """
    tensor = tf.convert_to_tensor(tensor)
    gradient_name = name and f"{name} gradient"

    def gradient(up: Any) -> Any:
        mean = allreduce(up, gradient_name, Average, process_set=process_set)
        first, rows = _my_rows(tensor, gradient_name, process_set)
        return mean[first : first + rows]

    return _with_gradient(lambda value: run("allgather", value, name, process_set), gradient)(
        tensor
    )


def _my_rows(tensor: Any, name: str | None, process_set: ProcessSet) -> tuple[Any, Any]:
    """Where this rank's rows of an allgather begin, and their number."""
    rows = tf.shape(tensor, out_type=tf.int64)[:1]
    everyone = run("allgather", rows, name and f"{name} rows", process_set)
    place = process_set.rank()
    return tf.reduce_sum(everyone[:place]), rows[0]


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The tensor of rank `root_rank`, a number among all ranks.

    The gradient is the ranks' average of the upstream gradients on the root, and zeros elsewhere.
    """
    if root_rank not in process_sets.members(process_set):
        raise tf.errors.InvalidArgumentError(
            None, None, f"hvd.broadcast: root_rank={root_rank} is not in {process_set}"
        )
    gradient_name = name and f"{name} gradient"

    def gradient(up: Any) -> Any:
        mean = allreduce(up, gradient_name, Average, process_set=process_set)
        if basics.rank() == root_rank:
            return mean
        # The zeros do not depend on the mean; without this a graph would prune it on this rank,
        # and the root would wait for it.
        with tf.control_dependencies([mean]):
            return tf.zeros_like(up)

    return _with_gradient(
        lambda value: run("broadcast", value, name, process_set, root=root_rank), gradient
    )(tf.convert_to_tensor(tensor))


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Rank r gets the r-th slice of every rank's tensor.

    `splits`: the number of rows of each slice that this rank sends; the result is then a pair whose
    second part is the number of rows received from each rank. None: all slices are equal. A slice's
    gradient is sent back to the rank that the slice came from.
    """
    tensor = tf.convert_to_tensor(tensor)
    size = len(process_sets.members(process_set))
    given = _equal_splits(tensor, size) if splits is None else tf.convert_to_tensor(splits)
    with tf.control_dependencies(_check_splits(tensor, given, size)):
        given = tf.identity(given)
    gradient_name = name and f"{name} gradient"

    def forward(value: Any) -> Any:
        return _exchange(value, given, name, size, process_set)

    @tf.custom_gradient
    def both(value: Any) -> Any:
        output, received = forward(value)

        def gradient(up: Any, _: Any = None) -> Any:
            returned, _ = _exchange(up, received, gradient_name, size, process_set)
            # Rows that were sent to no rank have a gradient of zero.
            rest = tf.shape(value)[0] - tf.shape(returned)[0]
            return tf.pad(returned, [[0, rest]] + [[0, 0]] * (len(value.shape) - 1))

        return (output, received), gradient

    output, received = both(tensor)
    return output if splits is None else (output, received)


def _equal_splits(tensor: Any, size: int) -> Any:
    rows = tf.shape(tensor)[0]
    check = tf.debugging.assert_equal(
        rows % size,
        0,
        message=f"hvd.alltoall: the first dimension is not divisible by {size} ranks; pass splits",
    )
    with tf.control_dependencies([] if check is None else [check]):
        return tf.fill([size], rows // size)


def _check_splits(tensor: Any, splits: Any, size: int) -> list[Any]:
    if splits.shape.rank == 1 and splits.shape[0] not in (None, size):
        raise tf.errors.InvalidArgumentError(
            None, None, f"hvd.alltoall got {splits.shape[0]} splits for {size} ranks"
        )
    check = tf.debugging.assert_less_equal(
        tf.reduce_sum(tf.cast(splits, tf.int64)),
        tf.shape(tensor, out_type=tf.int64)[0],
        message="hvd.alltoall: the sum of the splits exceeds the first dimension",
    )
    return [] if check is None else [check]


def _exchange(
    tensor: Any, splits: Any, name: str | None, size: int, process_set: ProcessSet
) -> tuple[Any, Any]:
    """(this rank's slices of all ranks' tensors, the number of rows of each)."""
    place = process_set.rank()
    # The table has a line per rank: its number of rows, then its splits.
    rows = tf.shape(tensor, out_type=tf.int64)[:1]
    mine = tf.concat([rows, tf.cast(splits, tf.int64)], 0)[tf.newaxis]
    table = run("allgather", mine, name and f"{name} splits", process_set)
    table = tf.ensure_shape(table, [size, size + 1])
    everything = run("allgather", tensor, name, process_set)
    begins = tf.cumsum(table[:, 0], exclusive=True) + tf.reduce_sum(table[:, 1 : place + 1], 1)
    counts = table[:, place + 1]
    parts = [everything[begins[r] : begins[r] + counts[r]] for r in range(size)]
    output = tf.ensure_shape(tf.concat(parts, 0), [None, *tensor.shape[1:]])
    return output, tf.cast(counts, splits.dtype)


def reducescatter(
    tensor: Any,
    name: str | None = None,
    op: int = Sum,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """This rank's rows of an allreduce. If the rows do not divide evenly, the first ranks get one
    more each."""
    if op not in (Average, Sum):
        raise NotImplementedError("hvd.reducescatter supports Average and Sum only")
    tensor = tf.convert_to_tensor(tensor)
    if tensor.shape.rank == 0:
        raise tf.errors.InvalidArgumentError(
            None, None, "hvd.reducescatter needs a tensor with at least one dimension"
        )
    size = len(process_sets.members(process_set))
    gradient_name = name and f"{name} gradient"

    def forward(value: Any) -> Any:
        reduced = allreduce(
            value, name, op, prescale_factor, postscale_factor, process_set=process_set
        )
        rows = tf.shape(reduced)[0]
        place = process_set.rank()
        assert place is not None
        each, extra = rows // size, rows % size
        first = place * each + tf.minimum(place, extra)
        part = reduced[first : first + each + tf.cast(place < extra, tf.int32)]
        if tensor.shape.rank and tensor.shape[0] is not None:
            each, extra = divmod(tensor.shape[0], size)
            part = tf.ensure_shape(part, [each + (place < extra), *tensor.shape[1:]])
        return part

    def gradient(up: Any) -> Any:
        factor = prescale_factor * postscale_factor * (size if op == Sum else 1)
        return allgather(_scaled(up, factor), gradient_name, process_set=process_set)

    return _with_gradient(forward, gradient)(tensor)


def join() -> Any:
    """Waits until every rank has called it; returns the last one's number, by the ranks' clocks.

    Until then the other ranks average the gradients of a step without this one, and rank 0 reports
    that. An allreduce that the script calls needs all ranks, and fails with an error.
    """
    basics.state()
    if not group.connected():
        return tf.constant(0)
    called_at = np.array([time.time()])
    arrays.barrier("hvd.join")
    everyone = arrays.run("allgather", called_at, "hvd.join times", of_script=True)
    return tf.constant(int(np.argmax(everyone)))


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Waits for all ranks of `process_set`. For eager code: in a tf.function it waits while the
    function is traced. Horovod has this for PyTorch only."""
    with tf.init_scope():
        run("allreduce", tf.zeros([1]), None, process_set, op="sum")
