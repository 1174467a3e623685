"""compat.v1 optimizers: gradients are averaged once, where they are computed.

`compute_gradients` returns averages, so code between it and `apply_gradients` (clipping, loss
scaling, a check for inf) does what it does in one process. Gradients from elsewhere are averaged
together at the start of `apply_gradients`, which costs less than one by one. An Apply op does not
average a gradient that was computed from averages; any other Apply op still does
(average/apply_ops.py).
"""

from __future__ import annotations

import re
import threading
from typing import Any

import tensorflow as tf
from tensorflow.mpi._src.average import averaging, scope, script_gradients
from tensorflow.mpi._src.runtime import group, threads
from tensorflow.mpi._src.variables import naming

_local = threading.local()  # minimizes: the optimizer whose minimize this thread is in
updates = 0  # how often an optimizer has updated a variable; for subclasses.py


def computing(compute_gradients: Any) -> Any:
    """Wraps Optimizer.compute_gradients, whose gradients `computed` averages."""

    def computing(self: Any, *args: Any, **kwargs: Any) -> Any:
        with scope.averaging_follows():
            return compute_gradients(self, *args, **kwargs)

    return computing


def minimizing(minimize: Any) -> Any:
    """Wraps Optimizer.minimize, so that `computed` knows that it runs."""

    def minimizing(self: Any, *args: Any, **kwargs: Any) -> Any:
        with threads.inside(_local, minimizes=self):
            return minimize(self, *args, **kwargs)

    return minimizing


def computed(optimizer: Any, gradients: Any, variables: Any) -> list[Any]:
    """See hooks.gradients_computed. Outside of minimize the script gets the gradients, and may use
    single rows of sparse ones."""
    every_row = getattr(_local, "minimizes", None) is not optimizer or not _sums_rows(optimizer)
    return _average(optimizer, gradients, variables, every_row)


def _sums_rows(optimizer: Any) -> bool:
    """Whether only stock code sees the gradients, and it sums duplicate rows before the update."""
    from tensorflow.python.training import gradient_descent
    from tensorflow.python.training.optimizer import Optimizer as base

    kind = type(optimizer)
    if not kind.__module__.startswith("tensorflow.python.training."):
        return False
    steps = ("compute_gradients", "apply_gradients")
    if any(getattr(kind, step) is not getattr(base, step) for step in steps):
        return False
    # Some optimizers override these; of them, only GradientDescentOptimizer adds each row to the
    # variable, which sums them as well.
    sums = ("_apply_sparse_duplicate_indices", "_resource_apply_sparse_duplicate_indices")
    return kind is gradient_descent.GradientDescentOptimizer or all(
        getattr(kind, method) is getattr(base, method) for method in sums
    )


def _average(optimizer: Any, gradients: Any, variables: Any, every_row: bool) -> list[Any]:
    """The averages. None and gradients of other types than floating or complex stay unchanged."""
    if group.size == 1:
        return gradients
    gradients = list(gradients)
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    to_average = []
    for index, gradient in enumerate(gradients):
        if not isinstance(gradient, (tf.Tensor, tf.IndexedSlices)):
            continue
        if gradient.dtype.is_floating or gradient.dtype.is_complex:
            gradients[index], averaged = script_gradients.resolve(gradient)
            if not averaged:
                to_average.append(
                    (index, averaging.with_dense_shape_of(gradients[index], variables[index]))
                )
    names = [_name(graph, variables[index]) for index, _ in to_average]
    averages = averaging.average_all(
        [gradient for _, gradient in to_average], names, optimizer.get_name(), every_row=every_row
    )
    for (index, _), result in zip(to_average, averages, strict=True):
        if graph is None:
            script_gradients.note_average(result)
        gradients[index] = result
    return gradients


def average_applied(optimizer: Any, pending: Any) -> Any:
    """See hooks.gradients_applied. None and gradients computed from averages stay unchanged."""
    if group.size == 1:
        return pending
    given = [index for index, (gradient, _, _) in enumerate(pending) if gradient is not None]
    # The script may list them in an order that differs by rank, and `resolve` is collective.
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    given.sort(key=lambda index: _natural(_name(graph, pending[index][1])))
    new = [index for index in given if not script_gradients.resolve(pending[index][0])[1]]
    gradients = [pending[index][0] for index in new]
    variables = [pending[index][1] for index in new]
    averaged = list(pending)
    averages = _average(optimizer, gradients, variables, not _sums_rows(optimizer))
    for index, gradient in zip(new, averages, strict=True):
        averaged[index] = (gradient, *pending[index][1:])
    return tuple(averaged)


def _natural(name: str) -> list[tuple[int, str]]:
    """A sort key that puts layer_2 before layer_10, in the order of the layers."""
    return [
        (int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)
    ]


def update(optimizer: Any, processor: Any, gradient: Any) -> Any:
    """See hooks.optimizer_update. No op of the update averages the gradient again."""
    global updates
    updates += 1
    if group.size == 1:
        return processor.update_op(optimizer, gradient)
    with scope.already_averaged():
        return processor.update_op(optimizer, gradient)


def _name(graph: Any, variable: Any) -> str:
    """The name of a variable, or of another target of a gradient, in averages."""
    if not hasattr(variable, "handle") and not hasattr(variable, "_ref"):
        return "tensor" if hasattr(variable, "_numpy_internal") else str(variable.name)
    return naming.variable_trained(graph, variable)
