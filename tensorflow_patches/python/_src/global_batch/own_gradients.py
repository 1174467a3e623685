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
from tensorflow.mpi._src.global_batch.kinds import ROWS, Analysis, Kind, key
from tensorflow.mpi._src.global_batch.rules_functions import BRANCHES, CALLS

_GRADIENT = "_gradient_op_type"  # TensorFlow's attribute
# The kinds that a gradient may have if its source is rows, and if it is a variable or a constant.
_TO_ROWS = {Kind.ROWS_OVER_SIZE, Kind.CONST}
_TO_CONSTANTS = {Kind.MEAN, Kind.CONST}


def find_mixing_op(analysis: Analysis, target: Any) -> Any:
    """An op before `target` whose gradient depends on several samples, or is unknown; or None."""
    for inner, op in _with_own_gradients(analysis, target):
        try:
            if not _is_by_sample(inner, op):
                return op
        except Exception:  # the script's function cannot be called here
            return op
    return None


def _with_own_gradients(analysis: Analysis, target: Any) -> Iterator[tuple[Analysis, Any]]:
    """The ops before `target`, also in functions and branches, that have a custom gradient of the
    script, each once, with its analysis.

    Tensors that are equal on all ranks are not followed.
    """
    seen: set[Any] = set()
    todo = [(analysis, target)]
    while todo:
        analysis, tensor = todo.pop()
        if (id(analysis), key(tensor)) in seen or analysis.kind(tensor) is Kind.CONST:
            continue
        seen.add((id(analysis), key(tensor)))
        op = tensor.op
        if op.type == "IdentityN" and _GRADIENT in op.node_def.attr and id(op) not in seen:
            seen.add(id(op))
            yield analysis, op
        todo += [(analysis, source) for source in op.inputs]
        if op.type in (*CALLS, *BRANCHES):
            todo += [(one, out) for one in analysis.insides(op) for out in one.graph.outputs]


def _is_by_sample(analysis: Analysis, op: Any) -> bool:
    """Whether the gradient of `op` treats samples independently; may raise the script's errors."""
    from tensorflow.python.framework import ops

    gradient = ops.gradient_registry.lookup(op.node_def.attr[_GRADIENT].s.decode())
    with op.graph.as_default():
        upstream = []
        for output in op.outputs:
            upstream.append(tf.zeros_like(output))
            of_rows = analysis.kind(output) in ROWS
            analysis.note(upstream[-1], Kind.ROWS_OVER_SIZE if of_rows else Kind.CONST)
        made = gradient(op, *upstream)
        for source, one in zip(op.inputs, made if isinstance(made, (list, tuple)) else [made]):
            if one is not None and source.dtype.is_floating:
                wanted = _TO_ROWS if analysis.kind(source) in ROWS else _TO_CONSTANTS
                if analysis.kind(tf.convert_to_tensor(one)) not in wanted:
                    return False
    return True
