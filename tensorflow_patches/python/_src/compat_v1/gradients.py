"""compat.v1 optimizers: gradients are averaged where they are computed, and then nowhere else.

`compute_gradients` returns averages, so what the script does with them before `apply_gradients`
(clipping, loss scaling, its check for inf) is what one process does. Gradients that it has from
elsewhere are averaged as `apply_gradients` begins, all together, which costs less than one by one.
An Apply op whose gradient was made from averages does not average it again; any other still does
(glue/apply_kernel.h).
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator
from typing import Any

from tensorflow.mpi._src.average import averaging
from tensorflow.mpi._src.runtime import hooks
from tensorflow.mpi._src.variables import naming

_AVERAGED = "_tf_mpi_averaged"  # an Apply op's; glue/apply_kernel.h
_STATES = "_tf_mpi_states"  # ... the keys of what it updates; glue/start_in_step.h

updates = 0  # of one variable, by an optimizer; for subclasses.py

_local = threading.local()  # minimizing

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
    if graph is not None and getattr(_local, "minimizing", False):
        hide(averages)
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
    if graph is not None:
        hide(averages)
    for index, gradient in zip(new, averages, strict=True):
        averaged[index] = (gradient, *pending[index][1:])
    return tuple(averaged)


@contextlib.contextmanager
def minimizing(optimizer: Any) -> Iterator[None]:
    """See hooks.minimizing. A subclass may show its gradients to others on some ranks only."""
    from tensorflow.python.training import optimizer as module

    methods = ("compute_gradients", "apply_gradients")
    stock = module.Optimizer
    _local.minimizing = all(getattr(type(optimizer), m) is getattr(stock, m) for m in methods)
    try:
        yield
    finally:
        _local.minimizing = False


def hide(averages: list[Any]) -> None:
    """Marks what the script has no name for, so that no op of its own reads it."""
    for tensor in averages:
        if hasattr(tensor, "op"):
            tensor.op._tf_mpi_hidden = True


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
    if not sparse:
        own = _own_gradient(op, inputs[name])
        if own is not None:
            op._update_input(list(inputs).index(name), own)
            return
    gradient = [inputs[name], inputs["indices"]] if sparse else [inputs[name]]
    if averaging.is_inside_already_averaged() or all(map(is_averaged, gradient)):
        from tensorflow.core.framework import attr_value_pb2

        op._set_attr(_AVERAGED, attr_value_pb2.AttrValue(b=True))
        keys = [key.encode() for key in naming.state_keys(op)]
        if keys:
            listed = attr_value_pb2.AttrValue.ListValue(s=keys)
            op._set_attr(_STATES, attr_value_pb2.AttrValue(list=listed))


def may_leave_to_update(average: Any, variable: Any) -> bool:
    """Whether ResourceApplyGradientDescent, made now, would average what `average` is of.

    `average`: a gradient in a graph, an average or not. The bits of `variable` are those of an
    update by its average.
    """
    from tensorflow.python.framework import dtypes, ops

    if not getattr(getattr(average, "op", None), "_tf_mpi_hidden", False):
        return False
    return (
        average.dtype in (dtypes.float32, dtypes.float64)
        and variable.dtype == average.dtype
        and variable.handle.dtype == dtypes.resource
        and average.graph is ops.get_default_graph()
        and not average.consumers()
        and _is_of_one(average)
        and _may_divide()
    )


def _own_gradient(op: Any, average: Any) -> Any:
    """What `average` is the average of, if `op` had better average that itself; else None.

    Its kernel then updates the variable as the average comes (glue/dense_update.h). Only for what
    nobody but `op` can ever read: where one rank reads an average, all ranks must make it.
    """
    from tensorflow.python.framework import dtypes

    if not getattr(average.op, "_tf_mpi_hidden", False) or not _is_of_one(average):
        return None
    if op.get_attr("use_locking") or op.inputs[0].dtype != dtypes.resource or not _may_divide():
        return None
    if average.graph is not op.graph or average.consumers() != [op]:
        return None
    contexts = {id(each._get_control_flow_context()) for each in (op, average.op)}
    return average.op.inputs[0] if len(contexts) == 1 else None


def _is_of_one(average: Any) -> bool:
    """Whether it is the average of one large gradient, with the weight 1."""
    if not _is_average(average.op):
        return False
    tensor, *more = average.op.inputs
    return len(more) == 1 and averaging.is_large(tensor) and _is_one(more[0])


def _may_divide() -> bool:
    from tensorflow.mpi import config
    from tensorflow.mpi._src.runtime import c_api

    *_, nodes = c_api.topology()
    every = config.get("TF_MPI_DENSE_UPDATE") == "every"
    return nodes == 1 and not every and not averaging.is_compiled()


def _is_one(weight: Any) -> bool:
    from tensorflow.python.framework import tensor_util

    value = tensor_util.constant_value(weight)
    return value is not None and float(value) == 1.0


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
