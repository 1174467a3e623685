"""compat.v1 optimizers: gradients are averaged where they are computed, and then nowhere else.

`compute_gradients` returns averages, so what the script does with them before `apply_gradients`
(clipping, loss scaling, its check for inf) is what one process does. Gradients that it has from
elsewhere are averaged as `apply_gradients` begins, all together, which costs less than one by one.
An Apply op whose gradient was made from averages does not average it again; any other still does
(glue/kernels/apply_kernel.h).
"""

from __future__ import annotations

import re
from typing import Any

from tensorflow.mpi._src.average import averaging
from tensorflow.mpi._src.runtime import hooks
from tensorflow.mpi._src.variables import naming

_AVERAGED = "_tf_mpi_averaged"  # an Apply op's; glue/kernels/apply_kernel.h
_STATES = "_tf_mpi_states"  # ... the keys of what it updates; glue/variables/initial_broadcast.h

updates = 0  # of one variable, by an optimizer; for subclasses.py

# The values that these give are the same on all ranks, if the ranks are in step.
_SAME_ON_ALL_RANKS = {"Const", "ReadVariableOp", "VarHandleOp", "Variable", "VariableV2"}
# And these give each rank a value of its own, though they have no state.
_OWN_OF_EACH_RANK = {"Placeholder", "PlaceholderV2", "PlaceholderWithDefault"}


def average(optimizer: Any, gradients: Any, variables: Any) -> list[Any]:
    """See hooks.gradients_computed. What is None or no number stays as it is."""
    from tensorflow.python.eager import context
    from tensorflow.python.framework import indexed_slices, ops, tensor

    if hooks.size == 1:
        return gradients
    gradients = list(gradients)
    graph = None if context.executing_eagerly() else ops.get_default_graph()
    numbers = [
        (index, gradient)
        for index, gradient in enumerate(gradients)
        if isinstance(gradient, (tensor.Tensor, indexed_slices.IndexedSlices))
        and (gradient.dtype.is_floating or gradient.dtype.is_complex)
    ]
    names = [_name(graph, variables[index]) for index, _ in numbers]
    averages = averaging.average_all(
        [gradient for _, gradient in numbers], names, optimizer.get_name()
    )
    for (index, _), result in zip(numbers, averages, strict=True):
        if graph is None:
            _values(result)._tf_mpi_averaged = True
        gradients[index] = result
    return gradients


def average_applied(optimizer: Any, pending: Any) -> Any:
    """See hooks.gradients_applied. What is None, or made of averages, stays as it is."""
    from tensorflow.python.eager import context
    from tensorflow.python.framework import ops

    if hooks.size == 1:
        return pending
    new = [
        index
        for index, (gradient, _, _) in enumerate(pending)
        if gradient is not None and not is_averaged(gradient)
    ]
    # The script may list them in an order of this rank's own.
    graph = None if context.executing_eagerly() else ops.get_default_graph()
    new.sort(key=lambda index: _natural(_name(graph, pending[index][1])))
    gradients = [pending[index][0] for index in new]
    variables = [pending[index][1] for index in new]
    averaged = list(pending)
    averages = average(optimizer, gradients, variables)
    for index, gradient in zip(new, averages, strict=True):
        averaged[index] = (gradient, *pending[index][1:])
    return tuple(averaged)


def _natural(name: str) -> list[tuple[int, str]]:
    """Sorts layer_2 before layer_10: in the order of a model's layers, if they are numbered."""
    return [
        (int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)
    ]


def update(optimizer: Any, processor: Any, gradient: Any) -> Any:
    """See hooks.optimizer_update. Whatever ops it updates by, its gradient is an average."""
    global updates
    updates += 1
    if hooks.size == 1:
        return processor.update_op(optimizer, gradient)
    with averaging.already_averaged():
        return processor.update_op(optimizer, gradient)


def _values(gradient: Any) -> Any:
    """The tensor of a gradient: of a sparse one, its rows."""
    return getattr(gradient, "values", gradient) if hasattr(gradient, "indices") else gradient


def _name(graph: Any, variable: Any) -> str:
    if not hasattr(variable, "handle") and not hasattr(variable, "_ref"):
        return str(variable.name)  # a tensor
    return naming.variable_trained(graph, variable)


def apply_op_created(op: Any) -> None:
    """`op`, an Apply op, is new in a graph: marks it if its gradient is an average already."""
    if hooks.size == 1:
        return
    name, sparse = hooks.apply_ops[op.type]
    inputs = dict(zip((argument.name for argument in op.op_def.input_arg), op.inputs, strict=True))
    gradient = [inputs[name], inputs["indices"]] if sparse else [inputs[name]]
    if averaging.is_inside_already_averaged() or all(map(is_averaged, gradient)):
        from tensorflow.core.framework import attr_value_pb2

        op._set_attr(_AVERAGED, attr_value_pb2.AttrValue(b=True))
        keys = [key.encode() for key in naming.state_keys(op)]
        if keys:
            listed = attr_value_pb2.AttrValue.ListValue(s=keys)
            op._set_attr(_STATES, attr_value_pb2.AttrValue(list=listed))


def is_averaged(gradient: Any) -> bool:
    """Whether `gradient` is made of averages over the ranks, so that it is the same on all of them.

    `gradient` is a tensor, or tf.IndexedSlices. In a graph: every way back from it, through ops
    that give the same values for the same inputs, ends at an average, a constant or a variable, and
    one at least at an average. An eager tensor: whether compute_gradients returned it.
    """
    gradient = _values(gradient)
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
    return op.type == "IdentityN" and bool(averaging.averaged_names(op))


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
