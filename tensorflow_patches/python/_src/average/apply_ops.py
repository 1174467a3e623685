"""Apply ops: the optimizer ops of TensorFlow, whose kernels average their gradient themselves.

Unless it was made from averages already: then Python, which sees how, marks the op as it is
created, and its kernel only updates (glue/kernels/apply_kernel.h). In eager code
already_averaged() says so.
"""

from __future__ import annotations

import threading
from typing import Any

from tensorflow.mpi._src.average import carrier, scope
from tensorflow.mpi._src.runtime import hooks
from tensorflow.mpi._src.variables import naming

_AVERAGED = "_tf_mpi_averaged"  # an Apply op's; glue/kernels/apply_kernel.h
_STATES = "_tf_mpi_states"  # ... the keys of what it updates; glue/variables/initial_broadcast.h

# The values that these give are the same on all ranks, if the ranks are synchronized.
_SAME_ON_ALL_RANKS = {"Const", "ReadVariableOp", "VarHandleOp", "Variable", "VariableV2"}
# And these give each rank a value of its own, though they have no state.
_OWN_OF_EACH_RANK = {"Placeholder", "PlaceholderV2", "PlaceholderWithDefault"}

created = 0  # Apply ops in graphs; written under _lock
_lock = threading.Lock()


def install() -> None:
    """Called once, when TensorFlow's libraries are loaded."""
    hooks.fill(apply_op_created=_apply_op_created)


def _apply_op_created(graph: Any, op: Any) -> None:
    """See hooks.apply_op_created.

    Declares its variable, so that variables are numbered in program order, and numbers the second
    and further Apply ops of one kind on one variable in one graph; marks those whose gradient is an
    average already.
    """
    global created
    with _lock:
        created += 1
    naming.apply_op_created(graph, op)
    if hooks.size == 1:
        return
    name, sparse = hooks.apply_ops[op.type]
    inputs = dict(zip((argument.name for argument in op.op_def.input_arg), op.inputs, strict=True))
    gradient = [inputs[name], inputs["indices"]] if sparse else [inputs[name]]
    if scope.is_inside_already_averaged() or all(map(is_averaged, gradient)):
        _mark(op)


def _mark(op: Any) -> None:
    from tensorflow.core.framework import attr_value_pb2

    op._set_attr(_AVERAGED, attr_value_pb2.AttrValue(b=True))
    keys = [key.encode() for key in naming.state_keys(op)]
    if keys:
        listed = attr_value_pb2.AttrValue.ListValue(s=keys)
        op._set_attr(_STATES, attr_value_pb2.AttrValue(list=listed))


def values_of(gradient: Any) -> Any:
    """The tensor of a gradient: of a sparse one, its rows."""
    return getattr(gradient, "values", gradient) if hasattr(gradient, "indices") else gradient


def is_averaged(gradient: Any) -> bool:
    """Whether `gradient` is made of averages over the ranks, so that it is the same on all of them.

    `gradient` is a tensor, or tf.IndexedSlices. In a graph: every way back from it, through ops
    that give the same values for the same inputs, ends at an average, a constant or a variable, and
    one at least at an average. An eager tensor: whether compute_gradients returned it.
    """
    gradient = values_of(gradient)
    if hasattr(gradient, "_numpy_internal"):
        return bool(getattr(gradient, "_tf_mpi_averaged", False))
    if not hasattr(gradient, "op") or not _holds_average(gradient.graph):
        return False
    graph = gradient.graph
    if not hasattr(graph, "_tf_mpi_same_on_all_ranks"):
        graph._tf_mpi_same_on_all_ranks = set()  # operations, so that each is looked at once
    same: set[Any] = graph._tf_mpi_same_on_all_ranks
    seen: set[Any] = set()
    todo = [gradient]
    while todo:
        tensor = todo.pop()
        if hasattr(tensor, "op") and tensor.op not in same and tensor.op not in seen:
            seen.add(tensor.op)
            made_of = _made_of(tensor)
            if made_of is None:
                return False
            todo.extend(made_of)
    same.update(seen)
    return _leads_to_average(gradient)


def _made_of(tensor: Any) -> list[Any] | None:
    """What makes the value of `tensor`, alike on all ranks; None if each may have its own."""
    op = tensor.op
    if op.type in _SAME_ON_ALL_RANKS or _is_average(op):
        return []
    if op.type in _OWN_OF_EACH_RANK:
        outer = _captured(tensor)
        return None if outer is None else [outer]
    return None if op.op_def.is_stateful else list(op.inputs)


def _leads_to_average(gradient: Any) -> bool:
    seen: set[Any] = set()
    todo = [gradient]
    while todo:
        tensor = todo.pop()
        if not hasattr(tensor, "op") or tensor.op in seen:  # no op: an eager tensor, captured
            continue
        seen.add(tensor.op)
        if _is_average(tensor.op):
            return True
        todo.extend(_made_of(tensor) or [])
    return False


def _is_average(op: Any) -> bool:
    return op.type == "IdentityN" and bool(carrier.averaged_names(op))


def _holds_average(graph: Any) -> bool:
    """Spares the walk in graphs that hold none."""
    while graph is not None:
        if hasattr(graph, "_tf_mpi_averages"):
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


def _captured(placeholder: Any) -> Any:
    """What a function's placeholder stands for outside of it; None for an argument."""
    graph = placeholder.graph
    if not hasattr(graph, "captures"):
        return None
    return next((out for out, inside in graph.captures if inside is placeholder), None)
