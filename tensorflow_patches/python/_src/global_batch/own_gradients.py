"""Functions with a tf.custom_gradient of the script, in a step that is analyzed.

The kind of their result says nothing about how gradients flow back through them: clipping a
gradient, for instance, depends on several samples at once, or on the size of a part. Therefore the
gradient function is called once with upstream gradients that are each sample's share of a mean. It
must return such a share for each sample, and a mean for a variable.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.mpi._src.global_batch import kinds
from tensorflow.mpi._src.global_batch.kinds import ROWS, Kind

_GRADIENT = "_gradient_op_type"  # TensorFlow's attribute
# The kinds that a gradient may have if its source is rows, and if it is a variable or a constant.
_TO_ROWS = {Kind.ROWS_OVER_SIZE, Kind.CONST}
_TO_CONSTANTS = {Kind.MEAN, Kind.CONST}


def find_mixing_op(part: Any, target: Any) -> Any:
    """An op before `target` whose gradient depends on several samples, or is unknown; or None."""
    for op in _with_own_gradients(part, target):
        try:
            if not _is_by_sample(part, op):
                return op
        except Exception:  # the script's function cannot be called here
            return op
    return None


def _with_own_gradients(part: Any, target: Any) -> Iterator[Any]:
    """The ops before `target` that have a custom gradient of the script, each once.

    Tensors that are equal on all ranks are not followed.
    """
    seen = set()
    todo = [target]
    while todo:
        tensor = todo.pop()
        if kinds.key(tensor) in seen or part.kind(tensor) is Kind.CONST:
            continue
        seen.add(kinds.key(tensor))
        op = tensor.op
        if op.type == "IdentityN" and _GRADIENT in op.node_def.attr and op.name not in seen:
            seen.add(op.name)
            yield op
        todo += op.inputs


def _is_by_sample(part: Any, op: Any) -> bool:
    """Whether the gradient of `op` treats samples independently; may raise the script's errors."""
    from tensorflow.python.framework import ops

    gradient = ops.gradient_registry.lookup(op.node_def.attr[_GRADIENT].s.decode())
    upstream = []
    for output in op.outputs:
        flowing = tf.compat.v1.placeholder(output.dtype, output.shape)
        part.note(flowing, Kind.ROWS_OVER_SIZE if part.kind(output) in ROWS else Kind.CONST)
        upstream.append(flowing)
    made = gradient(op, *upstream)
    for source, one in zip(op.inputs, made if isinstance(made, (list, tuple)) else [made]):
        if one is not None and source.dtype.is_floating:
            wanted = _TO_ROWS if part.kind(source) in ROWS else _TO_CONSTANTS
            if part.kind(tf.convert_to_tensor(one)) not in wanted:
                return False
    return True
