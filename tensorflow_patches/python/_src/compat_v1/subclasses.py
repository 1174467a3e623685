"""Refuses updates that bypass the averages, so that ranks never silently train N models."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.mpi._src.average import apply_ops, lineage, own_updates
from tensorflow.mpi._src.compat_v1 import gradients
from tensorflow.mpi._src.interpose import replacement_table
from tensorflow.mpi._src.runtime import c_api, group


def guard_subclass(optimizer: Any) -> None:
    """Checks a class derived from tf.compat.v1.train.Optimizer. See hooks.optimizer_subclassed.

    A class with its own apply_gradients may assign to variables itself. Therefore that method
    raises NotImplementedError if it has run neither an Apply op nor the stock apply_gradients,
    unless all its gradients are already averages or, in eager code, the variables are the same on
    all ranks afterwards, as when the optimizer has skipped a step. TensorFlow's own classes are not
    checked: they call the stock method, or skip the step.
    """
    original = vars(optimizer).get("apply_gradients")
    if original is None or group.size == 1 or optimizer.__module__.startswith("tensorflow."):
        return

    def apply_gradients(self: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        pairs = list(grads_and_vars)  # it may be an iterator
        before = _applied()
        result = original(self, pairs, *args, **kwargs)
        if _applied() == before and not all(
            gradient is None or lineage.is_averaged(gradient) for gradient, _ in pairs
        ):
            if _are_identical([variable for _, variable in pairs]):
                return result
            raise NotImplementedError(_no_apply_op(self))
        return result

    replacement_table.put(optimizer, "apply_gradients", apply_gradients)


def _are_identical(variables: list[Any]) -> bool:
    if not tf.executing_eagerly():
        return False
    return not own_updates.differ([variable.handle for variable in variables])


def _no_apply_op(optimizer: Any) -> str:
    return (
        f"{type(optimizer).__name__} updated its variables without one of TensorFlow's Apply ops, "
        "and with a gradient that does not come from compute_gradients, so it was not averaged "
        "over ranks. Compute the gradient with the optimizer's compute_gradients or minimize, or "
        "average it with tf.mpi.allreduce(gradient) and update the variables outside of an "
        "optimizer, or run with TF_MPI_ENABLE=0"
    )


def _applied() -> int:
    """The number of updates so far by Apply ops, in graphs or eager code, and by stock code."""
    from tensorflow.python.eager import context

    if tf.executing_eagerly():
        context.async_wait()
        return gradients.updates + int(c_api.stats()["applied"])
    return gradients.updates + apply_ops.created
