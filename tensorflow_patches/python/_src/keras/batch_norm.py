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

_MODULES = {
    "keras.src.layers.normalization.batch_normalization": "BatchNormalization",
    "tf_keras.src.layers.normalization.batch_normalization": "BatchNormalizationBase",
}


def install() -> None:
    """Called once, when TensorFlow's libraries are loaded."""
    if config.get("TF_MPI_SYNC_BATCHNORM") == "1":
        for name in _MODULES:
            hooking.when_imported(name, _hook)


def _hook(module: ModuleType) -> None:
    layer = _MODULES[module.__name__]
    hooking.wrap(module, f"{layer}._moments", _over_ranks)
    if module.__name__.startswith("tf_keras"):
        hooking.wrap(module, f"{layer}.build", _unfused)


def _over_ranks(own_moments: Any) -> Any:
    def moments(self: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        mean, variance = own_moments(self, *args, **kwargs)
        return _of_all_ranks(mean, variance, f"batch norm {self.name}")

    return moments


def _unfused(build: Any) -> Any:
    """tf_keras's fused kernel computes the moments inside, of this rank's samples."""

    def build_unfused(self: Any, input_shape: Any) -> Any:
        self.fused = False
        return build(self, input_shape)

    return build_unfused


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
