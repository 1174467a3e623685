"""tf_keras's batch normalization and masks, and lines about models that run at a lower speed.

If a Session runs the model (after disable_eager_execution), and in tensorflow.python.keras, every
rank gets all data: the result is that of one process, at the same speed.
"""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf
from tensorflow.mpi._src.global_batch import losses
from tensorflow.mpi._src.interpose import hooking
from tensorflow.mpi._src.keras import batch_norm
from tensorflow.mpi._src.runtime import log

_MIN_EPSILON = 1.001e-5  # tf.nn.fused_batch_norm's


def log_full_data(name: str, _model: Any) -> None:
    """Rank 0 says once that every rank trains on all data; `name`: the module whose fit begins."""
    package = name.partition(".src")[0].partition(".engine")[0]
    session = name.endswith("_v1")
    log.once(
        f"fit() of {package}{' without eager execution' if session else ''}: every rank trains on "
        "all of each batch: the result is correct, but no faster than with one process. To share "
        f"the work, use keras or tf_keras{' with eager execution' if session else ''}",
        key=f"fit of {name}",
    )


def not_tuning(_start: Any) -> Any:
    """Replaces StepsPerExecutionTuner.start, whose thread chooses the number by this rank's speed:
    ranks with different numbers would wait for one another."""

    def start(self: Any) -> None:
        log.once(
            "tf_keras would choose steps_per_execution='auto' by the speed of each rank, so it "
            f"stays {int(self.steps_per_execution)}. Pass a number, the same on all ranks"
        )

    return start


def _put_mask(tensor: Any, mask: Any) -> None:
    tensor._keras_mask = mask


def _loss() -> Any:
    return hooking.used("tf_keras.src.losses:Loss")


KERAS = losses.Keras(lambda tensor: getattr(tensor, "_keras_mask", None), _put_mask, _loss)


def moments(own_moments: Any) -> Any:
    """Wraps BatchNormalizationBase._moments."""

    def over_ranks(self: Any, inputs: Any, axes: Any, keep_dims: bool, mask: Any = None) -> Any:
        found = batch_norm.layer_moments(self, inputs, axes, mask)
        if found is None:
            return own_moments(self, inputs, axes, keep_dims, mask)
        return found[:2] if keep_dims else tuple(tf.squeeze(one, axes) for one in found[:2])

    return over_ranks


def fused(original: Any) -> Any:
    """Wraps BatchNormalizationBase._fused_batch_norm, whose kernel computes a part's moments."""

    def fused_batch_norm(self: Any, inputs: Any, mask: Any, training: Any) -> Any:
        constant = hooking.used("tf_keras.src.utils.control_flow_util:constant_value")
        found = None
        if constant(training):
            axes = [axis for axis in range(inputs.shape.rank) if axis not in self.axis]
            own = functools.partial(_moments_of_part, inputs, self._data_format)
            found = batch_norm.layer_moments(self, inputs, axes, own=own)
        if found is None:
            return original(self, inputs, mask, training)
        return _normalized(self, inputs, found, max(self.epsilon, _MIN_EPSILON))

    return fused_batch_norm


def _moments_of_part(inputs: Any, data_format: str) -> batch_norm.Moments:
    """Moments by the kernel, whose normalized output is dropped: half the time of tf.nn.moments."""
    channels = inputs.shape[data_format.index("C")]
    count = tf.cast(tf.size(inputs) // channels, tf.float32)  # of a channel

    @tf.custom_gradient
    def moments(x: Any) -> Any:
        found = tf.raw_ops.FusedBatchNormV3(
            x=x,
            scale=tf.ones(channels),
            offset=tf.zeros(channels),
            mean=tf.zeros(0),
            variance=tf.zeros(0),
            data_format=data_format,
            is_training=True,
        )
        mean = found.batch_mean

        def gradient(of_mean: Any, of_variance: Any) -> Any:
            slope = 2 * of_variance / count
            offset = of_mean / count - slope * mean
            upstream = tf.cast(x, tf.float32) * _along(slope, x, data_format)
            upstream = tf.cast(upstream + _along(offset, x, data_format), x.dtype)
            return tf.raw_ops.PreventGradient(input=upstream, message=_NO_SECOND_DERIVATIVE)

        # The kernel's variance is over n - 1.
        return (mean, found.batch_variance * (1 - 1 / count)), gradient

    mean, variance = moments(inputs)
    return batch_norm.Moments(mean, variance, tf.cast(count, tf.float64))


_NO_SECOND_DERIVATIVE = (
    "batch normalization over ranks by the fused kernel has no second derivative; give the layer "
    "fused=False"
)


def _along(channels: Any, x: Any, data_format: str) -> Any:
    """A value per channel, broadcast along the channels of `x`."""
    shape = [1] * x.shape.rank
    shape[data_format.index("C")] = -1
    return tf.reshape(channels, shape)


def _normalized(layer: Any, inputs: Any, found: batch_norm.Moments, epsilon: float) -> Any:
    """As the kernel: without a mask, and with n - 1 in the moving variance."""
    mean, variance = (tf.cast(tf.reshape(one, [-1]), tf.float32) for one in found[:2])
    scale = tf.ones_like(mean) if layer.gamma is None else tf.identity(layer.gamma)
    offset = tf.zeros_like(mean) if layer.beta is None else tf.identity(layer.beta)
    if found.count is None:  # in a step that is only analyzed
        x = tf.cast(inputs, tf.float32)
        given = (_along(one, x, layer._data_format) for one in (mean, variance, offset, scale))
        return tf.cast(tf.nn.batch_normalization(x, *given, epsilon), inputs.dtype)
    unbiased = variance * tf.cast(found.count / tf.maximum(found.count - 1, 1), variance.dtype)
    for moving, value in ((layer.moving_mean, mean), (layer.moving_variance, unbiased)):
        layer.add_update(
            functools.partial(layer._assign_moving_average, moving, value, layer.momentum, None)
        )
    options = {"epsilon": epsilon, "data_format": layer._data_format, "is_training": False}

    @tf.custom_gradient
    def by_kernel(x: Any, scale: Any, offset: Any, mean: Any, variance: Any) -> Any:
        """The kernel with given moments. Its own gradient takes them as constants."""
        result = tf.raw_ops.FusedBatchNormV3(
            x=x, scale=scale, offset=offset, mean=mean, variance=variance, **options
        )

        def gradient(upstream: Any) -> Any:
            back = tf.raw_ops.FusedBatchNormGradV3(
                y_backprop=upstream,
                x=x,
                scale=scale,
                reserve_space_1=mean,
                reserve_space_2=variance,
                reserve_space_3=result.reserve_space_3,
                **options,
            )
            slope = scale * tf.math.rsqrt(variance + epsilon)
            of_mean = -slope * back.offset_backprop
            of_variance = -0.5 * slope * tf.math.rsqrt(variance + epsilon) * back.scale_backprop
            return back.x_backprop, back.scale_backprop, back.offset_backprop, of_mean, of_variance

        return result.y, gradient

    return by_kernel(inputs, scale, offset, mean, variance)
