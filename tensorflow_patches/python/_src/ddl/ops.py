"""DDL's operators, as TensorFlow ops: in eager code, tf.function and graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.mpi._src.average import averaging, script_gradients
from tensorflow.mpi._src.ddl import api
from tensorflow.mpi._src.messaging import graph_collectives
from tensorflow.mpi._src.runtime import group

_OPS = ("sum", "avg")


def Init(user_gpuid: int = 0, mode: str = "", pci: bool = True) -> tuple[Any, Any, Any, Any, Any]:
    """(rank, size, local_rank, local_size, local_gpuid), as tensors.

    Args:
      user_gpuid, pci: ignored; gpu/gpus.py chooses a rank's GPU.
      mode: such as "b:4x2"; "" accepts any number of ranks.
    """
    api.init(f"-mode {mode}" if mode else None)
    values = (api.rank(), api.size(), api.local_rank(), api.local_size(), api.local_gpuid())
    rank, size, local_rank, local_size, gpuid = (tf.constant(value, tf.int32) for value in values)
    return rank, size, local_rank, local_size, gpuid


def Bcast(input: Any) -> Any:
    """Returns rank 0's tensor on every rank."""
    return graph_collectives.collective(
        "broadcast", tf.convert_to_tensor(input), None, "average", 0
    )


def AllReduceN(
    input: Sequence[Any], op: str = "avg", mpi: bool = False, check: float = 0.0
) -> list[Any]:
    """Sums or averages each tensor over all ranks.

    Args:
      input: tensors of one floating dtype.
      op: "sum" or "avg".
      mpi: reduces each tensor by the MPI library's MPI_Iallreduce, except on GPUs and with
        TF_MPI_FAULT=shrink. The transfer's timeout is TF_MPI_STALL_TIMEOUT, but at most 300 s.
      check: from 0 (no check) to 1: the result may differ from that of `mpi` by this fraction of
        the largest element. A larger difference raises tf.errors.InvalidArgumentError, which
        reports it.
    """
    if op not in _OPS:
        raise ValueError(f"op={op!r}; accepted: {', '.join(_OPS)}")
    if not 0 <= check <= 1:
        raise ValueError(f"check={check} is not accepted; accepted: from 0 to 1")
    tensors = [tf.convert_to_tensor(one) for one in input]
    if mpi:
        return [_mpi_allreduce(one, op) for one in tensors]
    reduced = _reduced(tensors, op)
    if not check:
        return reduced
    return [
        _checked(result, _mpi_allreduce(own, op), check, number)
        for number, (result, own) in enumerate(zip(reduced, tensors, strict=True))
    ]


def _reduced(tensors: list[Any], op: str) -> list[Any]:
    if group.group_size == 1:
        return [tf.identity(one) for one in tensors]
    names = [f"tensor {number}" for number in range(len(tensors))]
    averages = averaging.average_all(tensors, names, f"ddl of {len(names)}", every_row=True)
    if op == "avg":
        return averages
    size = group.group_size
    return [averaging.map_values(lambda one: one * tf.cast(size, one.dtype), a) for a in averages]


def _mpi_allreduce(tensor: Any, op: str) -> Any:
    total = graph_collectives.collective("allreduce", tensor, None, "plain sum", 0)
    return total / tf.cast(group.group_size, total.dtype) if op == "avg" else total


def _checked(result: Any, expected: Any, tolerance: float, number: int) -> Any:
    difference = tf.reduce_max(tf.abs(result - expected))
    limit = tf.cast(tolerance, difference.dtype) * tf.reduce_max(tf.abs(expected))
    check = tf.debugging.assert_less_equal(
        difference,
        limit,
        message=f"ddl.AllReduceN: tensor {number} differs from MPI_Allreduce's result by (x), but "
        f"check={tolerance} allows (y)",
    )
    with tf.control_dependencies([] if check is None else [check]):
        return tf.identity(result)


def grads_reduce(
    grads_and_vars: Sequence[tuple[Any, Any]], average: bool = True
) -> list[tuple[Any, Any]]:
    """The pairs with averaged or summed gradients; an optimizer does not average them again."""
    pairs = list(grads_and_vars)
    present = [i for i, (gradient, _) in enumerate(pairs) if gradient is not None]
    reduced = _reduced([pairs[i][0] for i in present], "avg" if average else "sum")
    for i, gradient in zip(present, reduced, strict=True):
        if tf.executing_eagerly():
            script_gradients.note_average(gradient)
        pairs[i] = (gradient, pairs[i][1])
    return pairs


def all_reduce_n(grads: Sequence[Any], op: str = "avg") -> list[Any]:
    return AllReduceN(grads, op)


def bcast(t: Any) -> Any:
    return Bcast(t)
