"""Stops what this release cannot keep in step: no N unsynchronised models in silence."""

from __future__ import annotations

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
        raise NotImplementedError(
            f"{type(optimizer).__name__} updated '{variable.name}' without one of TensorFlow's "
            "Apply ops, so its gradient was not averaged over ranks. Use an optimizer of "
            f"tf.compat.v1.train, average it with tf.mpi.allreduce(gradient) and assign it "
            f"yourself, {_WAY_OUT}"
        )
    return result


def _applied() -> int:
    """Apply ops created in graphs and completed eagerly, so far."""
    from tensorflow.python.eager import context

    if context.executing_eagerly():
        context.async_wait()
        return _lib.stats()["completed"]
    return _hooks._applied
