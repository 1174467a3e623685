"""Stops what this release cannot keep in step: no N unsynchronised models in silence."""

from __future__ import annotations

import functools
from typing import Any

from tensorflow.mpi import _average, _gradients, _hooks, _lib

_WAY_OUT = "or run with TF_MPI_ENABLE=0"


def update(optimizer: Any, processor: Any, gradient: Any, variable: Any) -> Any:
    """One variable's update by an optimizer of tf.compat.v1.train. See _hooks.optimizer_update.

    A sparse gradient that is no average yet is averaged here, since many optimizers update its rows
    by other ops than an Apply op. Raises NotImplementedError for an optimizer whose update by a
    dense gradient runs no Apply op, unless the gradient is an average already (_gradients.py).
    """
    from tensorflow.python.framework import indexed_slices

    if _hooks.size == 1:
        return processor.update_op(optimizer, gradient)
    if isinstance(gradient, indexed_slices.IndexedSlices):
        if not _gradients.is_averaged(gradient):
            gradient = _gradients.average_slices(optimizer, gradient, variable)
        with _average.already_averaged():
            return processor.update_op(optimizer, gradient)
    if hasattr(gradient, "_numpy_internal") and _gradients.is_averaged(gradient):
        with _average.already_averaged():
            return processor.update_op(optimizer, gradient)
    before = _applied()
    result = processor.update_op(optimizer, gradient)
    if _applied() == before and not _gradients.is_averaged(gradient):
        raise NotImplementedError(_no_apply_op(optimizer, f"'{variable.name}'"))
    return result


def guard_subclass(optimizer: Any) -> None:
    """A class derived from tf.compat.v1.train.Optimizer. See _hooks.optimizer_subclassed.

    One with an apply_gradients of its own may assign by itself: the call then raises
    NotImplementedError if it ran no Apply op, unless all its gradients are averages already.
    """
    original = vars(optimizer).get("apply_gradients")
    if original is None or _hooks.size == 1:
        return

    @functools.wraps(original)
    def apply_gradients(self: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        pairs = list(grads_and_vars)  # it may be an iterator
        before = _applied()
        result = original(self, pairs, *args, **kwargs)
        if _applied() == before and not all(
            gradient is None or _gradients.is_averaged(gradient) for gradient, _ in pairs
        ):
            raise NotImplementedError(_no_apply_op(self, "its variables"))
        return result

    optimizer.apply_gradients = apply_gradients


def _no_apply_op(optimizer: Any, what: str) -> str:
    return (
        f"{type(optimizer).__name__} updated {what} without one of TensorFlow's Apply ops, by a "
        "gradient that does not come from compute_gradients, so that it was not averaged over "
        "ranks. Compute it with the optimizer's compute_gradients or minimize, average it with "
        f"tf.mpi.allreduce(gradient) and assign it yourself, {_WAY_OUT}"
    )


def _applied() -> int:
    """Apply ops created in graphs, or run eagerly, so far."""
    from tensorflow.python.eager import context

    if context.executing_eagerly():
        context.async_wait()
        return _lib.stats()["applied"]
    return _hooks._applied
