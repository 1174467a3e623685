"""tf_keras's fit, evaluate and predict, and batch normalization: what keras/ has for Keras 3.

Where a Session runs the model (after disable_eager_execution), and in tensorflow.python.keras,
every rank is fed all data: as one process, and no faster.
"""

from __future__ import annotations

import functools
from typing import Any

from tensorflow.mpi._src.global_batch import losses
from tensorflow.mpi._src.keras import batch_norm
from tensorflow.mpi._src.runtime import log

_LEAST_EPSILON = 1.001e-5  # tf.nn.fused_batch_norm's


def tell_of_all_data(name: str, _model: Any) -> None:
    """Once, on rank 0: `name` is the module whose fit begins."""
    package = name.partition(".src")[0].partition(".engine")[0]
    session = name.endswith("_v1")
    log.once(
        f"fit() of {package}{' without eager execution' if session else ''}: every rank trains on "
        "all of each batch, so it is right and no faster than one process. To share the work, use "
        f"keras or tf_keras{' with eager execution' if session else ''}",
        key=f"fit of {name}",
    )


def _put_mask(tensor: Any, mask: Any) -> None:
    tensor._keras_mask = mask


def _loss() -> Any:
    from tf_keras.src import losses as of_tf_keras

    return of_tf_keras.Loss


KERAS = losses.Keras(lambda tensor: getattr(tensor, "_keras_mask", None), _put_mask, _loss)


def moments(own_moments: Any) -> Any:
    """Wraps BatchNormalizationBase._moments."""

    def over_ranks(self: Any, inputs: Any, axes: Any, keep_dims: bool, mask: Any = None) -> Any:
        import tensorflow as tf

        found = batch_norm.of_layer(self, inputs, axes, mask)
        if found is None:
            return own_moments(self, inputs, axes, keep_dims, mask)
        return found[:2] if keep_dims else tuple(tf.squeeze(one, axes) for one in found[:2])

    return over_ranks


def fused(original: Any) -> Any:
    """Wraps BatchNormalizationBase._fused_batch_norm, whose kernel has a part's moments inside."""

    def fused_batch_norm(self: Any, inputs: Any, mask: Any, training: Any) -> Any:
        import tensorflow as tf
        from tf_keras.src.utils import control_flow_util

        found = None
        axes = [axis for axis in range(inputs.shape.rank) if axis not in self.axis]
        if control_flow_util.constant_value(training):
            found = batch_norm.of_layer(self, tf.cast(inputs, tf.float32), axes)
        if found is None:
            return original(self, inputs, mask, training)
        return _as_fused(self, inputs, axes, found)

    return fused_batch_norm


def _as_fused(layer: Any, inputs: Any, axes: list[int], found: batch_norm.Moments) -> Any:
    """What the kernel computes; like it, without a mask and with n - 1 in the moving variance."""
    import tensorflow as tf

    mean, variance, count = found
    offset, scale = (
        None if one is None else tf.reshape(one, mean.shape) for one in (layer.beta, layer.gamma)
    )
    epsilon = max(layer.epsilon, _LEAST_EPSILON)
    x = tf.cast(inputs, tf.float32)
    outputs = tf.nn.batch_normalization(x, mean, variance, offset, scale, epsilon)
    unbiased = variance * tf.cast(count / tf.maximum(count - 1, 1), variance.dtype)
    for moving, value in ((layer.moving_mean, mean), (layer.moving_variance, unbiased)):
        update = functools.partial(
            layer._assign_moving_average, moving, tf.squeeze(value, axes), layer.momentum, None
        )
        layer.add_update(update)
    return tf.cast(outputs, inputs.dtype)
