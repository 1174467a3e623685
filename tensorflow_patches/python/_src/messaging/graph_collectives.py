"""Collectives on tensors, as ops, for eager code, tf.function and v1 graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.mpi._src.messaging import collectives
from tensorflow.mpi._src.presence import presence
from tensorflow.mpi._src.runtime import group

_OPS = {
    "allreduce": "TfMpiAllreduce",
    "allgather": "TfMpiAllgather",
    "broadcast": "TfMpiBroadcast",
}
# Attributes that callers do not set; apply_op does not apply defaults.
_COMMON: dict[str, Any] = {"members": [], "for_horovod": False}
_DEFAULTS = {"allgather": {"of_data": False, **_COMMON}}


def collective(kind: str, value: Any, name: str | None, op: str, root: int) -> Any:
    """See tensorflow.mpi.allreduce, allgather and broadcast."""
    collectives.refuse_in_child(kind)

    if not isinstance(value, (tf.Tensor, tf.Variable)) and not _is_variable(value):
        array = np.asarray(value)
        if not group.connected():
            return array
        meeting = collectives.meeting_name(kind, name)
        return collectives.run(kind, array, meeting, op=op, root=root, of_script=True)
    value = tf.convert_to_tensor(value)
    if not group.connected():
        return value
    attributes = _attributes(kind, op, root)
    if isinstance(value, tf.__internal__.EagerTensor):
        return _eager(kind, value, collectives.meeting_name(kind, name), attributes)
    return _in_graph(kind, value, name, attributes)


def horovod_collective(
    kind: str,
    value: Any,
    name: str | None,
    *,
    op: str = "sum",
    root: int = 0,
    ranks: Sequence[int] = (),
) -> Any:
    """A collective, on the tensor `value`, of a script that was written for Horovod.

    Args:
      kind, name: as for collective().
      op: of an allreduce.
      root: of a broadcast; a number among all ranks.
      ranks: the participating ranks, in ascending order; others do not call it. Empty: all.

    When it runs, raises tf.errors.FailedPreconditionError if ranks differ in dtype or shape.
    """
    attributes = {"for_horovod": True, "members": [int(rank) for rank in ranks]}
    attributes |= _attributes(kind, op, root)
    suffix = f" of {' '.join(map(str, ranks))}" if ranks else ""
    if isinstance(value, tf.__internal__.EagerTensor):
        meeting = collectives.meeting_name(f"hvd {kind}", name)
        return _eager(kind, value, f"{meeting}{suffix}", attributes)
    return _in_graph(kind, value, name, attributes, suffix)


def _attributes(kind: str, op: str, root: int) -> dict[str, Any]:
    if kind == "allreduce":
        return {"reduce_op": collectives.REDUCE_OPS[op]}
    return {"root": root} if kind == "broadcast" else {}


def _is_variable(value: Any) -> bool:
    """Whether `value` is a Keras 3 variable, which is not a TensorFlow variable."""
    return hasattr(value, "__tf_tensor__")


def run_op(kind: str, value: Any, name: str) -> Any:
    """A collective of the runtime itself on the tensor `value`; ranks match it by `name`."""
    from tensorflow.python.framework import constant_op, op_def_library

    if isinstance(value, tf.__internal__.EagerTensor):
        return _eager(kind, value, name, {})
    meeting = constant_op.constant(name)
    inputs = {"tensor": value, "tensor_name": meeting}
    return op_def_library.apply_op(_OPS[kind], **inputs, **_DEFAULTS.get(kind, _COMMON))


def gather_data(vector: Any, name: Any) -> Any:
    """An allgather in a data pipeline's graph; ranks match it by `name`, a string tensor."""
    from tensorflow.python.framework import op_def_library

    attributes = {**_DEFAULTS["allgather"], "of_data": True}
    return op_def_library.apply_op(_OPS["allgather"], tensor=vector, tensor_name=name, **attributes)


def _eager(kind: str, value: Any, name: str, attributes: dict[str, Any]) -> Any:
    from tensorflow.python.eager import context, execute

    flat: list[Any] = ["T", value.dtype.as_datatype_enum]
    for key, attribute in attributes.items():
        flat += [key, attribute]
    (result,) = execute.execute(
        _OPS[kind].encode(),
        1,
        inputs=[value, tf.convert_to_tensor(name)],
        attrs=tuple(flat),
        ctx=context.context(),
    )
    return result


def _in_graph(
    kind: str, value: Any, name: str | None, attributes: dict[str, Any], suffix: str = ""
) -> Any:
    """Without a `name`, ranks match the call by its function's name and its number there. A loop or
    branch does not count as the function: a retrace changes the names of their graphs."""
    from tensorflow.python.framework import constant_op, op_def_library, ops
    from tensorflow.python.ops import control_flow_v2_func_graphs as control_flow

    presence.uses()
    # The suffix gives collectives of some ranks their own numbers: other ranks do not create them.
    scope = f"mpi_{kind}{suffix.replace(' ', '_')}"
    if name is None:
        function = tf.compat.v1.get_default_graph()
        while isinstance(function, control_flow.ControlFlowFuncGraph):
            function = function.outer_graph
        name = f"{getattr(function, 'name', 'graph')}/{function.unique_name(scope)}"
    with ops.name_scope(scope):
        result = op_def_library.apply_op(
            _OPS[kind],
            tensor=value,
            tensor_name=constant_op.constant(f"{kind} {name}{suffix}"),
            **{**_DEFAULTS.get(kind, _COMMON), **attributes},
        )
    return result
