"""tf_keras's fit, evaluate and predict, and batch normalization: what keras/ has for Keras 3."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from tensorflow.mpi._src.keras import batch_norm, fit, learning_rate
from tensorflow.mpi._src.runtime import hooking


def install() -> None:
    """Called once, when TensorFlow's libraries are loaded."""
    hooking.when_imported("tf_keras.src.callbacks", fit.hook_callbacks)
    hooking.when_imported("tf_keras.src.engine.training", _hook_metrics)
    if learning_rate.is_scaled():
        hooking.when_imported("tf_keras.src.callbacks", learning_rate.hook_callbacks)
    if batch_norm.is_synchronized():
        layers = "tf_keras.src.layers.normalization.batch_normalization"
        hooking.when_imported(layers, _hook_batch_norm)


def _hook_metrics(module: ModuleType) -> None:
    makes = {"_validate_and_get_metrics_result": fit.over_ranks}
    hooking.wrap_in_subclasses(module, "Model", makes)


def _hook_batch_norm(module: ModuleType) -> None:
    hooking.wrap(module, "BatchNormalizationBase._moments", batch_norm.over_ranks)
    hooking.wrap(module, "BatchNormalizationBase.build", _unfused)


def _unfused(build: Any) -> Any:
    """tf_keras's fused kernel computes the moments inside, of this rank's samples."""

    def build_unfused(self: Any, input_shape: Any) -> Any:
        self.fused = False
        return build(self, input_shape)

    return build_unfused
