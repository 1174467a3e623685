"""Stops what this release cannot keep in step: no N unsynchronised models in silence."""

from __future__ import annotations

import functools
from typing import Any

from tensorflow.mpi import _hooks, _lib

_WAY_OUT = "or run with TF_MPI_ENABLE=0"


def update(optimizer: Any, processor: Any, gradient: Any, variable: Any) -> Any:
    """One variable's update by an optimizer of tf.compat.v1.train. See _hooks.optimizer_update.

    Raises NotImplementedError for a sparse gradient, and for an optimizer whose update runs no
    Apply op.
    """
    from tensorflow.python.framework import indexed_slices

    if _hooks.size == 1:
        return processor.update_op(optimizer, gradient)
    if isinstance(gradient, indexed_slices.IndexedSlices):
        raise NotImplementedError(
            f"{type(optimizer).__name__} got a sparse gradient for '{variable.name}'; sparse "
            "gradients are not averaged over ranks in this release. Make it dense with "
            f"tf.convert_to_tensor(gradient) before apply_gradients, {_WAY_OUT}"
        )
    before = _applied()
    result = processor.update_op(optimizer, gradient)
    if _applied() == before:
        raise NotImplementedError(_no_apply_op(optimizer, f"'{variable.name}'"))
    return result


def guard_subclass(optimizer: Any) -> None:
    """A class derived from tf.compat.v1.train.Optimizer. See _hooks.optimizer_subclassed.

    One with an apply_gradients of its own may assign by itself: the call then raises
    NotImplementedError if it ran no Apply op.
    """
    original = vars(optimizer).get("apply_gradients")
    if original is None or _hooks.size == 1:
        return

    @functools.wraps(original)
    def apply_gradients(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = _applied()
        result = original(self, *args, **kwargs)
        if _applied() == before:
            raise NotImplementedError(_no_apply_op(self, "its variables"))
        return result

    optimizer.apply_gradients = apply_gradients


def _no_apply_op(optimizer: Any, what: str) -> str:
    return (
        f"{type(optimizer).__name__} updated {what} without one of TensorFlow's Apply ops, so the "
        "gradients were not averaged over ranks. Use an optimizer of tf.compat.v1.train, average "
        f"them with tf.mpi.allreduce(gradient) and assign them yourself, {_WAY_OUT}"
    )


def _applied() -> int:
    """Apply ops created in graphs, or run eagerly, so far."""
    from tensorflow.python.eager import context

    if context.executing_eagerly():
        context.async_wait()
        return _lib.stats()["gradients"]
    return _hooks._applied
