"""Averages in compiled functions: one call for all gradients of a step.

Shapes are static there, so a sparse gradient's shape includes room for the rows of all ranks.
glue/xla/compiled_call.h is the counterpart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.mpi import config
from tensorflow.mpi._src.average import carrier, scope
from tensorflow.mpi._src.runtime import group


def is_compiled() -> bool:
    """Whether the function that is traced now is compiled as a whole."""
    from tensorflow.python.ops import control_flow_util

    if tf.executing_eagerly():
        return False
    return bool(control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()))


def average_in_one_call(
    gradients: Sequence[Any],
    names: Sequence[str],
    label: str,
    weight: Any,
    every_row: bool = False,
) -> list[Any]:
    """The averages of tensors and tf.IndexedSlices, in the compiled function that is traced now.

    One call for all, because XLA would block at the first of several. `every_row`: as in
    average_slices.
    """
    count = _rows if every_row else _rows_if_sparse
    rows = [count(g) if isinstance(g, tf.IndexedSlices) else None for g in gradients]
    sparse = [i for i, own in enumerate(rows) if own is not None]
    dense = [i for i, own in enumerate(rows) if own is None]
    graph = tf.compat.v1.get_default_graph()
    attributes: dict[str, Any] = {}
    if sparse:
        attributes = _sparse_attributes([rows[i] for i in sparse], scope.duplicates(every_row))
    results = carrier.marked_identity(
        [tensor for i in sparse for tensor in _padded(gradients[i])]
        + [carrier.not_constant(tf.convert_to_tensor(gradients[i])) for i in dense],
        [names[i] for i in [*sparse, *dense]],
        carrier.numbered(label, carrier.count_in_graph(graph, label)),
        tf.convert_to_tensor(1.0 if weight is None else weight, dtype=tf.float32),
        **attributes,
    )
    averages: dict[int, Any] = dict(zip(dense, results[2 * len(sparse) :], strict=True))
    for pair, i in enumerate(sparse):
        values, indices = results[2 * pair : 2 * pair + 2]
        averages[i] = tf.IndexedSlices(values, indices, gradients[i].dense_shape)
    return [averages[i] for i in range(len(gradients))]


def _sparse_attributes(rows: list[int | None], duplicates: int) -> dict[str, Any]:
    return {carrier.ROWS: {"list": {"i": rows}}, carrier.DUPLICATES: {"i": duplicates}}


def average_inputs(slices: Any, duplicates: int) -> tuple[list[Any], dict[str, Any]]:
    """See averaging.average_inputs."""
    return _padded(slices), _sparse_attributes([_rows(slices)], duplicates)


def _rows(slices: Any) -> int:
    """The number of this rank's rows; -1 if it is unknown while the function is traced."""
    rows = slices.values.shape.dims[0].value if slices.values.shape.rank else None
    return -1 if rows is None else int(rows)


def _rows_if_sparse(slices: Any) -> int | None:
    """The number of this rank's rows if a sparse gradient should travel as rows; otherwise None.

    It travels as a dense tensor if that moves fewer bytes, if its shape is not static, or with
    TF_MPI_SPARSE=dense. The engine reports ranks whose numbers of rows lead to other decisions.
    """
    mode = config.get("TF_MPI_SPARSE")
    shape = slices.values.shape
    if mode == "dense" or not shape.is_fully_defined():
        return None
    rows = int(shape[0])
    table = table_rows(slices)
    # Per rank an allreduce moves every element twice, an allgather every row and index once.
    row_bytes = (shape.num_elements() // max(1, rows)) * slices.values.dtype.size
    gathered = group.group_size * rows * (row_bytes + 8)
    if mode == "auto" and table >= 0 and gathered > 2 * table * row_bytes:
        return None
    return rows


def _padded(slices: Any) -> list[Any]:
    """Values and indices, padded to the size of the results. See glue/xla/compiled_call.h."""
    # Room for the rows of all ranks, and for ranks that have a few rows more than this one.
    # RowsForCapacity in glue/xla/compiled_average.cc derives the number of this rank's rows from
    # the padded number.
    rows: Any = _rows(slices)
    if rows >= 0:
        spare: Any = max(rows // 8, min(rows, 512), 1)
    else:
        rows = tf.shape(slices.values, out_type=tf.int32)[0]
        spare = tf.maximum(tf.maximum(rows // 8, tf.minimum(rows, 512)), 1)
    more = (group.group_size - 1) * rows + group.group_size * spare
    # A single process that loads this graph adds these rows of zeros, at a valid index.
    index = tf.concat([slices.indices, tf.zeros([1], slices.indices.dtype)], axis=0)
    row_shape = tf.shape(slices.values, out_type=tf.int32)[1:]
    zeros = tf.zeros(tf.concat([[more], row_shape], axis=0), slices.values.dtype)
    padded = [
        tf.concat([slices.values, zeros], axis=0),
        tf.concat([slices.indices, tf.fill([more], index[0])], axis=0),
    ]
    return [carrier.not_constant(tensor) for tensor in padded]


def table_rows(slices: Any) -> int:
    """The first dimension of the dense gradient; -1, on all ranks, if it is not static."""
    if slices.dense_shape is None:
        return -1
    shape = tf.get_static_value(tf.convert_to_tensor(slices.dense_shape))
    return -1 if shape is None else int(shape[0])
