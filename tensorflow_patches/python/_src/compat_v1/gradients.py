"""compat.v1 optimizers: gradients are averaged where they are computed, and then nowhere else.

`compute_gradients` returns averages, so what the script does with them before `apply_gradients`
(clipping, loss scaling, its check for inf) is what one process does. Gradients that it has from
elsewhere are averaged as `apply_gradients` begins, all together, which costs less than one by one.
An Apply op whose gradient was made from averages does not average it again; any other still does
(average/apply_ops.py).
"""

from __future__ import annotations

import re
import threading
from typing import Any

from tensorflow.mpi._src.average import averaging, scope, script_gradients
from tensorflow.mpi._src.runtime import group, threads
from tensorflow.mpi._src.variables import naming

_local = threading.local()  # minimizes: the optimizer whose minimize this thread is in
updates = 0  # of one variable, by an optimizer; for subclasses.py


def computing(compute_gradients: Any) -> Any:
    def computing(self: Any, *args: Any, **kwargs: Any) -> Any:
        with scope.averaging_follows():
            return compute_gradients(self, *args, **kwargs)

    return computing


def minimizing(minimize: Any) -> Any:
    def minimizing(self: Any, *args: Any, **kwargs: Any) -> Any:
        with threads.inside(_local, minimizes=self):
            return minimize(self, *args, **kwargs)

    return minimizing


def computed(optimizer: Any, gradients: Any, variables: Any) -> list[Any]:
    """See hooks.gradients_computed. The script may look at rows, unless it has called minimize."""
    every_row = getattr(_local, "minimizes", None) is not optimizer or not _sums_rows(optimizer)
    return _average(optimizer, gradients, variables, every_row)


def _sums_rows(optimizer: Any) -> bool:
    """Whether stock code hands gradients on, and sums their duplicate rows before it updates."""
    from tensorflow.python.training import gradient_descent
    from tensorflow.python.training.optimizer import Optimizer as base

    kind = type(optimizer)
    if not kind.__module__.startswith("tensorflow.python.training."):
        return False
    steps = ("compute_gradients", "apply_gradients")
    if any(getattr(kind, step) is not getattr(base, step) for step in steps):
        return False
    # Of those that have one for duplicates, only this adds them to the variable.
    sums = ("_apply_sparse_duplicate_indices", "_resource_apply_sparse_duplicate_indices")
    return kind is gradient_descent.GradientDescentOptimizer or all(
        getattr(kind, method) is getattr(base, method) for method in sums
    )


def _average(optimizer: Any, gradients: Any, variables: Any, every_row: bool) -> list[Any]:
    """The averages. What is None or no number stays as it is."""
    from tensorflow.python.eager import context
    from tensorflow.python.framework import indexed_slices, ops, tensor

    if group.size == 1:
        return gradients
    gradients = list(gradients)
    graph = None if context.executing_eagerly() else ops.get_default_graph()
    numbers = []
    for index, gradient in enumerate(gradients):
        if not isinstance(gradient, (tensor.Tensor, indexed_slices.IndexedSlices)):
            continue
        if gradient.dtype.is_floating or gradient.dtype.is_complex:
            gradients[index], averaged = script_gradients.resolve(gradient)
            if not averaged:
                numbers.append((index, averaging.of_table(gradients[index], variables[index])))
    names = [_name(graph, variables[index]) for index, _ in numbers]
    averages = averaging.average_all(
        [gradient for _, gradient in numbers], names, optimizer.get_name(), every_row=every_row
    )
    for (index, _), result in zip(numbers, averages, strict=True):
        if graph is None:
            script_gradients.note_average(result)
        gradients[index] = result
    return gradients


def average_applied(optimizer: Any, pending: Any) -> Any:
    """See hooks.gradients_applied. What is None, or made of averages, stays as it is."""
    from tensorflow.python.eager import context
    from tensorflow.python.framework import ops

    if group.size == 1:
        return pending
    new = [
        index
        for index, (gradient, _, _) in enumerate(pending)
        if gradient is not None and not script_gradients.resolve(gradient)[1]
    ]
    # The script may list them in an order of this rank's own.
    graph = None if context.executing_eagerly() else ops.get_default_graph()
    new.sort(key=lambda index: _natural(_name(graph, pending[index][1])))
    gradients = [pending[index][0] for index in new]
    variables = [pending[index][1] for index in new]
    averaged = list(pending)
    averages = _average(optimizer, gradients, variables, not _sums_rows(optimizer))
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
    if group.size == 1:
        return processor.update_op(optimizer, gradient)
    with scope.already_averaged():
        return processor.update_op(optimizer, gradient)


def _name(graph: Any, variable: Any) -> str:
    if not hasattr(variable, "handle") and not hasattr(variable, "_ref"):
        return "tensor" if hasattr(variable, "_numpy_internal") else str(variable.name)
    return naming.variable_trained(graph, variable)
