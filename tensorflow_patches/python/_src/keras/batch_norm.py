"""Batch normalization by the moments of the whole batch, of which each rank has a part.

For each channel the ranks add up the count of numbers, their sum and the sum of their squares, in
one operation per layer; the backward pass takes one more. So uneven parts, masks and ranks without
samples need no special case, and a step equals one process's (docs/decisions/073-batch-norm.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.mpi import config
from tensorflow.mpi._src.average import averaging, scope
from tensorflow.mpi._src.global_batch import batch
from tensorflow.mpi._src.global_batch.sites import Why
from tensorflow.mpi._src.keras import calls
from tensorflow.mpi._src.runtime import group, log
from tensorflow.mpi._src.variables import unwrap

_SWITCH = "TF_MPI_SYNC_BATCHNORM"
_WAY_OUT = f"To normalize by the whole batch, set {_SWITCH}=1 or give layers synchronized=True"


class Moments(NamedTuple):
    """Mean and variance of each channel, and the count of numbers, which is float64."""

    mean: Any
    variance: Any
    count: Any


def over_ranks(own_moments: Any) -> Any:
    """Wraps Keras 3's BatchNormalization._moments."""

    def moments(self: Any, inputs: Any, mask: Any) -> Any:
        found = layer_moments(self, inputs, self._reduction_axes, mask)
        if found is None:
            return own_moments(self, inputs, mask)
        return tuple(tf.squeeze(one, self._reduction_axes) for one in found[:2])

    return moments


def layer_moments(
    layer: Any, inputs: Any, axes: Sequence[int], mask: Any = None, own: Any = None
) -> Moments | None:
    """The moments by which a layer normalizes `inputs` in training, with keepdims.

    None if the layer should compute them itself. In an analyzed step their count is None.

    Args:
      own: computes this rank's Moments, if they should not be computed here.
    """
    if _is_analyzed(layer):
        return _constants(layer, inputs, axes)
    if not _is_of_all_ranks(layer):
        return None
    part = batch.current()
    mean, variance, count = _part_moments(inputs, axes, mask) if own is None else own()
    if part is not None and part.counts is not None:
        count = tf.where(part.counts, count, tf.zeros_like(count))
    return combine(Moments(mean, variance, count), f"batch norm {layer.name}")


def _is_analyzed(layer: Any) -> bool:
    """Whether a step is only analyzed, and the layer's moments count as constants.

    When the step runs, they come from all ranks' samples. Not in predict, whose steps have no
    parts, and not for virtual batches, which cross parts: these are analyzed as they are.
    """
    part, call = batch.current(), calls.innermost()
    if part is None or part.findings is None or _has_virtual_batches(layer):
        return False
    return call is None or call.kind != "predict"


def _constants(layer: Any, inputs: Any, axes: Sequence[int]) -> Moments:
    """Moments for an analyzed step, as constants on every rank."""
    findings = batch.current().findings
    shape = [1 if axis in axes else size for axis, size in enumerate(inputs.shape)]

    @tf.custom_gradient
    def moments(x: Any) -> tuple[Any, Any]:
        moving = [unwrap.tf_variable(v) for v in (layer.moving_mean, layer.moving_variance)]

        def gradient(*upstream: Any) -> Any:
            # With unequal parts, the weighting of this gradient depends on how it is used.
            what = f"a gradient of samples that passes through the moments of layer '{layer.name}'"
            findings.whys.append(Why(what))
            return tf.zeros_like(x)

        return [tf.reshape(tf.cast(v, x.dtype), shape) for v in moving], gradient

    mean, variance = moments(inputs)
    return Moments(mean, variance, None)


def _has_virtual_batches(layer: Any) -> bool:
    return getattr(layer, "virtual_batch_size", None) is not None


def _is_of_all_ranks(layer: Any) -> bool:
    """Whether the layer normalizes by all ranks' samples; if by a part, says so once."""
    part = batch.current()
    if group.size == 1 or scope.is_replicated_step() or (part is not None and part.is_suspended):
        return False
    asked = getattr(layer, "synchronized", False) or config.get(_SWITCH) == "1"
    has_part = scope.has_own_samples() or config.get("TF_MPI_SHARD") != "auto"
    if not (asked or has_part):
        return False  # all ranks have the same batch
    why = _why_not(layer, asked)
    if not why:
        layer._tf_mpi_synchronized = True
        return True
    if part is None or part.findings is None:
        where = "" if calls.innermost() is not None else ", in a custom training loop,"
        drift = ", and its moving averages drift apart" if where else ""
        log.once(
            f"layer '{layer.name}'{where} normalizes by the moments of each rank's part of the "
            f"batch{drift}; other layers may, too: {why}",
            key=f"batch norm of a part{where}: {why}",
        )
    return False


def _why_not(layer: Any, asked: bool) -> str:
    """Why a layer normalizes by a rank's part of a batch; "" if it does not."""
    if _has_virtual_batches(layer):
        return "its virtual batches are made of each rank's samples"
    if asked:
        return ""
    if config.get(_SWITCH) == "0":
        return f"{_SWITCH}=0"
    if config.get("TF_MPI_SHARD") == "off":
        return f"the script gives each rank its data. {_WAY_OUT}"
    if not tf.compat.v1.executing_eagerly_outside_functions():
        return f"a Session runs it. {_WAY_OUT}"
    if averaging.pass_through_hosts():
        return f"averages of tensors on GPUs pass through the hosts here. {_WAY_OUT}"
    return ""


def _part_moments(x: Any, axes: Sequence[int], mask: Any) -> Moments:
    """The moments of this rank's samples; arbitrary if it has none."""
    if mask is None:
        mean, variance = tf.nn.moments(x, axes, keepdims=True)
        return Moments(mean, variance, tf.cast(tf.size(x) / tf.size(mean), tf.float64))
    valid = tf.broadcast_to(tf.cast(mask, tf.bool)[..., None], tf.shape(x))
    count = tf.reduce_sum(tf.cast(valid, x.dtype), axes, keepdims=True)

    def mean_of(values: Any) -> Any:
        total = tf.reduce_sum(tf.where(valid, values, tf.zeros_like(x)), axes, keepdims=True)
        return tf.math.divide_no_nan(total, count)

    mean = mean_of(x)
    variance = mean_of(tf.square(x - tf.stop_gradient(mean)))
    return Moments(mean, variance, tf.cast(count, tf.float64))


def combine(own: Moments, label: str) -> Moments:
    """The moments of all ranks' numbers, from those of each; differentiable to any order.

    In float64, so that E[x^2] - E[x]^2 loses nothing that float32 could show.
    """
    weight, count = scope.current_weight(), own.count
    same_scope = scope.capture_scope()
    # The weight of this rank: without numbers it contributes zeros, even if it has NaN.
    has_numbers = tf.cast(tf.reduce_any(count > 0), tf.float32)

    @tf.custom_gradient
    def whole(mean: Any, square: Any) -> Any:
        with same_scope():
            sums = averaging.average(
                [count * mean, count * square, count],
                ["sum", "squares", "count"],
                label,
                has_numbers,
            )
        means = [tf.math.divide_no_nan(one, sums[2]) for one in sums[:2]]

        def gradient(*upstream: Any) -> Any:
            return back(*upstream[:2], sums[2])[:2]

        return (*means, sums[2]), gradient

    @tf.custom_gradient
    def back(mean: Any, square: Any, all_counts: Any) -> Any:
        """The gradient of this rank's moments, divided by the weight with which it is averaged."""
        with same_scope():
            found = averaging.average_of_upstream(
                [mean, square], ["sum", "squares"], f"{label} gradient", weight
            )
        share = tf.math.divide_no_nan(count, all_counts)
        if weight is not None:
            share = tf.math.divide_no_nan(share, tf.cast(weight, tf.float64))

        def gradient(*upstream: Any) -> Any:
            return (*whole(*upstream)[:2], None)

        return [one * share for one in found], gradient

    mean = tf.cast(own.mean, tf.float64)
    square = tf.cast(own.variance, tf.float64) + tf.square(mean)
    mean, square, all_counts = whole(mean, square)
    variance = tf.nn.relu(square - tf.square(mean))  # rounding may make it negative
    return Moments(
        tf.cast(mean, own.mean.dtype),
        tf.cast(variance, own.variance.dtype),
        all_counts * group.group_size,  # from the ranks' mean to their sum
    )
