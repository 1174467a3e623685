"""TF_MPI_SYNC_BATCHNORM=1: batch normalization by the moments of the whole batch.

Without it each rank normalises by its own part of the batch. Here the ranks average mean and mean
square, weighted by their samples, in one operation per layer and direction; the gradient of that
average is the same average of the gradients, so a step is the one process's step.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from tensorflow.mpi import config
from tensorflow.mpi._src.average import averaging, scope
from tensorflow.mpi._src.runtime import hooking


def install() -> None:
    """Called once, when TensorFlow's libraries are loaded."""
    if is_synchronized():
        hooking.when_imported("keras.src.layers.normalization.batch_normalization", _hook)


def is_synchronized() -> bool:
    """Whether the ranks normalize by one another's samples, too."""
    return bool(config.get("TF_MPI_SYNC_BATCHNORM") == "1")


def _hook(module: ModuleType) -> None:
    hooking.wrap(module, "BatchNormalization._moments", over_ranks)


def over_ranks(own_moments: Any) -> Any:
    """For hooking.wrap, of a layer's method that returns mean and variance."""

    def moments(self: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        mean, variance = own_moments(self, *args, **kwargs)
        return _of_all_ranks(mean, variance, f"batch norm {self.name}")

    return moments


def _of_all_ranks(mean: Any, variance: Any, name: str) -> tuple[Any, Any]:
    """In float64, in which E[x^2] - E[x]^2 loses nothing that float32 could show."""
    import tensorflow as tf

    weight = scope.current_weight()

    @tf.custom_gradient
    def average(first: Any, second: Any) -> tuple[tuple[Any, Any], Any]:
        def gradient(upstream_first: Any, upstream_second: Any) -> list[Any]:
            return averaging.average(
                [upstream_first, upstream_second], ["mean", "square"], f"{name} gradient", weight
            )

        averages = averaging.average([first, second], ["mean", "square"], name, weight)
        return tuple(averages), gradient

    wide = tf.cast(mean, tf.float64)
    square = tf.cast(variance, tf.float64) + tf.square(wide)
    wide, square = average(wide, square)
    spread = tf.maximum(square - tf.square(wide), 0)
    return tf.cast(wide, mean.dtype), tf.cast(spread, variance.dtype)
