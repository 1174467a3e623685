"""The stock op that makes an average in graphs: an IdentityN with private attributes.

A SavedModel with such an op loads in stock TensorFlow, as an identity. Its kernel is decorated at
registration, as those of optimizer ops are (glue/kernels/average_kernel.h).
"""

from __future__ import annotations

import collections
from typing import Any

import tensorflow as tf
from tensorflow.mpi._src.variables import naming
from tensorflow.mpi._src.variables.naming import NAMES

LABEL = "_tf_mpi_average"
TABLE_ROWS = "_tf_mpi_table_rows"  # makes it an average of a sparse gradient
DUPLICATES = "_tf_mpi_duplicates"  # how it handles duplicates: scope.duplicates()
# In a compiled function one op averages all gradients, sparse ones first, each as values and
# indices, padded with room for other ranks' rows. For each sparse gradient the attribute has the
# number of this rank's rows; -1: to be derived from the padded number.
ROWS = "_tf_mpi_rows"
# Without it Grappler would drop outputs that nobody reads (the weight), and fold constants.
_KEEP = "_grappler_do_not_remove"


def marked_identity(
    tensors: list[Any], names: list[str], label: str, weight: Any, **more: Any
) -> list[Any]:
    """The averages of `tensors`, made by a new op. `more`: attributes as fields of AttrValues."""
    outputs = tf.identity_n([*tensors, weight], name="mpi_average")
    mark(outputs[0].op, names, label, **more)
    return list(outputs[:-1])


def mark(op: Any, names: list[str], label: str, **more: Any) -> None:
    """Turns an IdentityN whose last input is a weight into an average. See marked_identity."""
    from tensorflow.python.ops import control_flow_v2_func_graphs as control_flow

    encoded = [name.encode() for name in names]
    attributes = {LABEL: {"s": label.encode()}, NAMES: {"list": {"s": encoded}}, **more}
    _set(op, {_KEEP: {"b": True}, **attributes})
    # TensorFlow runs iterations of a loop in parallel, in an order that differs by rank, up to the
    # body's control outputs. The average has the same name in all of them.
    if isinstance(op.graph, control_flow.ControlFlowFuncGraph):
        op.graph.control_outputs.append(op)


def kept_identity(averages: list[Any]) -> list[Any]:
    """An IdentityN that Grappler leaves unchanged."""
    outputs: list[Any] = tf.identity_n(averages, name="mpi_averages")
    _set(outputs[0].op, {_KEEP: {"b": True}})
    return list(outputs)


def _set(op: Any, attributes: dict[str, Any]) -> None:
    for key, value in attributes.items():
        op._set_attr(key, tf.compat.v1.AttrValue(**value))


def averaged_names(op: Any) -> list[str]:
    """The names that `op`, an IdentityN in a graph, averages; empty for a stock IdentityN."""
    if NAMES not in op.node_def.attr:
        return []
    return [name.decode() for name in op.get_attr(NAMES)]


def is_distinct(values: Any, indices: Any) -> bool:
    """Whether these are the result of one `average_slices` that has summed duplicates."""
    if hasattr(values, "_numpy_internal"):
        return getattr(values, "_tf_mpi_distinct", None) is indices
    if not hasattr(values, "op") or not hasattr(indices, "op"):
        return False
    if values.op is not indices.op or values.op.type != "IdentityN":
        return False
    attributes = values.op.node_def.attr
    if attributes[DUPLICATES].i:
        return False
    pairs = len(attributes[ROWS].list.i) if ROWS in attributes else int(TABLE_ROWS in attributes)
    i = values.value_index
    return i % 2 == 0 and indices.value_index == i + 1 < 2 * pairs


def numbered(label: str, number: int) -> str:
    return label if number == 1 else f"{label} #{number}"


def count_in_graph(graph: Any, label: str) -> int:
    """The number, from 1, of a new average of `label` in `graph`'s function.

    Branches and loops count with their function. A tf.function inside another counts by itself:
    whether it is traced there may differ by rank.
    """
    from tensorflow.python.ops import control_flow_v2_func_graphs as control_flow

    while isinstance(graph, control_flow.ControlFlowFuncGraph):
        graph = graph.outer_graph
    counts = naming.noted(graph, "_tf_mpi_averages", collections.Counter)
    counts[label] += 1
    return int(counts[label])


def opaque_zero(dtype: Any) -> Any:
    """A tensor that is 0; TensorFlow cannot fold it into a constant, because its op is stateful."""
    return tf.raw_ops.Empty(shape=[], dtype=dtype, init=True)


def _is_constant(tensor: Any) -> bool:
    """Whether Grappler may know the value of `tensor` when it optimizes the graph.

    It would then replace the average by that value, too.
    """
    seen: set[Any] = set()
    todo = [tensor.op]
    while todo:
        op = todo.pop()
        if op.type.startswith("Placeholder") or op.op_def.is_stateful:
            return False
        todo += [source.op for source in op.inputs if source.op not in seen]
        seen.update(source.op for source in op.inputs)
    return True


def not_constant(tensor: Any) -> Any:
    """The same value, in a form that Grappler cannot know."""
    return tensor + opaque_zero(tensor.dtype) if _is_constant(tensor) else tensor
