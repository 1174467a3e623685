"""The average of many tensors over the ranks as one operation, for gradients that pass no Apply op.

In graphs it is an IdentityN with private attributes, a stock op: a SavedModel that holds one loads
in stock TensorFlow, as the identity it is on one process. In eager code it is an op of our own.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from tensorflow.mpi import _hooks, _lib

LABEL = "_tf_mpi_average"
_NAMES = "_tf_mpi_names"
# Grappler would split off the outputs that nobody reads (the weight), and fold constants.
_KEEP = "_grappler_do_not_remove"

_local = threading.local()  # weight, depth


def average(
    tensors: Sequence[Any], names: Sequence[str], label: str, weight: Any = None
) -> list[Any]:
    """The averages over all ranks of `weight * tensor`, in one operation.

    Args:
      tensors: dense tensors or variables of floating or complex dtypes; the same number, dtypes and
        shapes on all ranks.
      names: one per tensor, the same on all ranks: they name a tensor in errors.
      label: of the whole. Name and label together must be unique among what is averaged at the same
        time. In one graph, the second and further average of a label get its number.
      weight: float32 scalar tensor, not negative; None is 1. Its mean over ranks should be 1. With
        0 a rank counts as zeros, whatever its tensors hold.

    Returns:
      Tensors of the shapes and dtypes of `tensors`; these themselves on one rank.

    Raises:
      ValueError: there are not as many names as tensors.
      TypeError: a tensor is sparse.
      When it runs: tf.errors.InvalidArgumentError, DeadlineExceededError, UnavailableError, as
      tensorflow.mpi.allreduce.
    """
    from tensorflow.python.eager import context
    from tensorflow.python.framework import dtypes, indexed_slices, ops

    if len(tensors) != len(names):
        raise ValueError(f"'{label}' averages {len(tensors)} tensors under {len(names)} names")
    for tensor, name in zip(tensors, names, strict=True):
        if isinstance(tensor, indexed_slices.IndexedSlices):
            raise TypeError(f"'{name}' of the average '{label}' is sparse; it must be dense")
    dense = [ops.convert_to_tensor(tensor) for tensor in tensors]
    if not dense or _hooks.size == 1:
        return dense
    scale = ops.convert_to_tensor(1.0 if weight is None else weight, dtype=dtypes.float32)
    if context.executing_eagerly():
        return _eager(dense, list(names), label, scale)
    return _in_graph(dense, list(names), label, scale)


def _eager(tensors: list[Any], names: list[str], label: str, weight: Any) -> list[Any]:
    from tensorflow.python.eager import context, execute

    types = tuple(tensor.dtype.as_datatype_enum for tensor in tensors)
    averages: list[Any] = execute.execute(
        b"TfMpiAverage",
        len(tensors),
        inputs=[*tensors, weight],
        attrs=("T", types, "label", label, "names", names),
        ctx=context.context(),
    )
    return averages


def _in_graph(tensors: list[Any], names: list[str], label: str, weight: Any) -> list[Any]:
    from tensorflow.core.framework import attr_value_pb2
    from tensorflow.python.framework import ops
    from tensorflow.python.ops import gen_array_ops

    number = _count(ops.get_default_graph(), label)
    if number > 1:
        label += f" #{number}"
    outputs: list[Any] = gen_array_ops.identity_n([*tensors, weight], name="mpi_average")
    encoded = [name.encode() for name in names]
    attributes = {
        LABEL: attr_value_pb2.AttrValue(s=label.encode()),
        _NAMES: attr_value_pb2.AttrValue(list=attr_value_pb2.AttrValue.ListValue(s=encoded)),
        _KEEP: attr_value_pb2.AttrValue(b=True),
    }
    for key, value in attributes.items():
        outputs[0].op._set_attr(key, value)
    return list(outputs[:-1])


def _count(graph: Any, label: str) -> int:
    """How many averages of `label` the function has with this one; its branches and loops count in.

    Not those of the function in which it is nested: whether it is traced together with that
    one may differ by rank.
    """
    from tensorflow.python.ops import control_flow_v2_func_graphs as control_flow

    while isinstance(graph, control_flow.ControlFlowFuncGraph):
        graph = graph.outer_graph
    if not hasattr(graph, "_tf_mpi_averages"):
        graph._tf_mpi_averages = {}
    graph._tf_mpi_averages[label] = graph._tf_mpi_averages.get(label, 0) + 1
    return int(graph._tf_mpi_averages[label])


@contextlib.contextmanager
def weighted(weight: Any) -> Iterator[None]:
    """On this thread, `current_weight()` is `weight` inside: around a Keras train step."""
    before = current_weight()
    _local.weight = weight
    try:
        yield
    finally:
        _local.weight = before


def current_weight() -> Any:
    """The weight of this rank's samples in the step that is being traced or run; None if unset."""
    return getattr(_local, "weight", None)


@contextlib.contextmanager
def already_averaged() -> Iterator[None]:
    """Apply ops that this thread creates in graphs, or runs eagerly, inside get averages already.

    Their kernels do not average again. Call no tf.function inside in eager code: whether its
    kernels run on this thread is TensorFlow's affair.
    """
    from tensorflow.python.eager import context

    with contextlib.ExitStack() as stack:
        if context.executing_eagerly():
            # The kernels must run on this thread.
            stack.enter_context(context.execution_mode(context.SYNC))
        before = _lib.load().tfmpi_set_averaged(1)
        _local.depth = getattr(_local, "depth", 0) + 1
        try:
            yield
        finally:
            _local.depth -= 1
            _lib.load().tfmpi_set_averaged(before)


def is_inside_already_averaged() -> bool:
    """Whether this thread is inside `already_averaged()`."""
    return getattr(_local, "depth", 0) > 0


def averaged_names(op: Any) -> list[str]:
    """The names of what `op`, an IdentityN in a graph, averages; none if it is a stock one."""
    if _NAMES not in op.node_def.attr:
        return []
    return [name.decode() for name in op.get_attr(_NAMES)]
