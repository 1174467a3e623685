"""The gradient of a scaled loss on a part of a batch, as a share of the whole batch's gradient.

The gradient of a part's mean is N times larger, per sample, than that of the whole batch's mean. In
float16, for which losses are scaled, it would overflow on the way back where one process's does
not, and the step would be skipped. Therefore the backward pass starts from the part's share of the
batch instead of 1, and gradients are added up rather than averaged
(docs/decisions/071-shares.md).

Only the computation between the loss and the variables' gradients uses shares: a script that looks
at a gradient that is not averaged sees the gradient of its part.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.mpi._src.average import scope, script_gradients
from tensorflow.mpi._src.interpose import hooking
from tensorflow.mpi._src.runtime import group

_SCALED = "_tf_mpi_scaled_loss"  # on a tensor


def noting_scaled(scale: Any) -> Any:
    """Wraps an optimizer's method that returns a scaled loss."""

    @hooking.without_autograph
    def scaled(self: Any, loss: Any) -> Any:
        result = hooking.with_callers_autograph(scale)(self, loss)
        if callable(result):
            return lambda: _note(result())
        return result if result is loss else _note(result)

    return scaled


def _note(loss: Any) -> Any:
    if tf.is_tensor(loss):
        setattr(loss, _SCALED, True)
    return loss


def taking_by_shares(original: Any) -> Any:
    """Wraps GradientTape.gradient(target, sources, output_gradients=None, ...)."""

    @hooking.without_autograph
    def gradient(
        self: Any,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        function = hooking.with_callers_autograph(original)
        if not _are_shares(target, sources):
            return function(self, target, sources, output_gradients, *args, **kwargs)
        upstream = _times_share(target, output_gradients)
        with scope.shares():
            return function(self, target, sources, upstream, *args, **kwargs)

    return gradient


def _are_shares(target: Any, sources: Any) -> bool:
    """Whether `target` is a scaled loss of this rank's own samples, and `sources` are variables."""
    return (
        group.size > 1
        and scope.has_own_samples()
        and not scope.is_inside_already_averaged()
        and any(hasattr(one, _SCALED) for one in tf.nest.flatten(target))
        and all(script_gradients.variable_of(one) is not None for one in tf.nest.flatten(sources))
    )


def _times_share(target: Any, output_gradients: Any) -> list[Any]:
    """The gradients from which the backward pass starts, times this rank's share of the batch."""
    targets = tf.nest.flatten(target)
    given = [None] * len(targets) if output_gradients is None else tf.nest.flatten(output_gradients)
    upstream = [
        tf.ones_like(t) if g is None else tf.convert_to_tensor(g) for t, g in zip(targets, given)
    ]
    return [one * tf.cast(scope.share(), one.dtype) for one in upstream]
