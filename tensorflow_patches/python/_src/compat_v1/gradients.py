"""compat.v1 optimizers: gradients are averaged where they are computed, and then nowhere else.

`compute_gradients` returns averages, so what the script does with them before `apply_gradients`
(clipping, loss scaling, its check for inf) is what one process does. Gradients that it has from
elsewhere are averaged as `apply_gradients` begins, all together, which costs less than one by one.
An Apply op whose gradient was made from averages does not average it again; any other still does
(average/apply_ops.py).
"""

from __future__ import annotations

import re
from types import ModuleType
from typing import Any

from tensorflow.mpi._src.average import apply_ops, averaging, distinct, scope
from tensorflow.mpi._src.runtime import hooking, hooks
from tensorflow.mpi._src.variables import naming

updates = 0  # of one variable, by an optimizer; for subclasses.py


def install() -> None:
    """Called once, when TensorFlow's libraries are loaded."""
    hooks.fill(
        gradients_computed=_average,
        gradients_applied=_average_applied,
        optimizer_update=_update,
    )
    if hooks.size > 1:
        hooking.when_imported("tensorflow.python.training.optimizer", _hook)


def _hook(module: ModuleType) -> None:
    hooking.wrap(module, "_deduplicate_indexed_slices", distinct.unless_distinct)


def _average(optimizer: Any, gradients: Any, variables: Any) -> list[Any]:
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
            apply_ops.values_of(result)._tf_mpi_averaged = True
        gradients[index] = result
    return gradients


def _average_applied(optimizer: Any, pending: Any) -> Any:
    """See hooks.gradients_applied. What is None, or made of averages, stays as it is."""
    from tensorflow.python.eager import context
    from tensorflow.python.framework import ops

    if hooks.size == 1:
        return pending
    new = [
        index
        for index, (gradient, _, _) in enumerate(pending)
        if gradient is not None and not apply_ops.is_averaged(gradient)
    ]
    # The script may list them in an order of this rank's own.
    graph = None if context.executing_eagerly() else ops.get_default_graph()
    new.sort(key=lambda index: _natural(_name(graph, pending[index][1])))
    gradients = [pending[index][0] for index in new]
    variables = [pending[index][1] for index in new]
    averaged = list(pending)
    averages = _average(optimizer, gradients, variables)
    for index, gradient in zip(new, averages, strict=True):
        averaged[index] = (gradient, *pending[index][1:])
    return tuple(averaged)


def _natural(name: str) -> list[tuple[int, str]]:
    """Sorts layer_2 before layer_10: in the order of a model's layers, if they are numbered."""
    return [
        (int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)
    ]


def _update(optimizer: Any, processor: Any, gradient: Any) -> Any:
    """See hooks.optimizer_update. Whatever ops it updates by, its gradient is an average."""
    global updates
    updates += 1
    if hooks.size == 1:
        return processor.update_op(optimizer, gradient)
    with scope.already_averaged():
        return processor.update_op(optimizer, gradient)


def _name(graph: Any, variable: Any) -> str:
    if not hasattr(variable, "handle") and not hasattr(variable, "_ref"):
        return str(variable.name)  # a tensor
    return naming.variable_trained(graph, variable)
