"""tf_keras's fit, evaluate and predict, and batch normalization: what keras/ has for Keras 3.

Where a Session runs the model (after disable_eager_execution), and in tensorflow.python.keras,
every rank is fed all data: as one process, and no faster.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from tensorflow.mpi._src.global_batch import losses
from tensorflow.mpi._src.interpose import hooking
from tensorflow.mpi._src.keras import batch_norm, fit, learning_rate, parts
from tensorflow.mpi._src.runtime import log

_FED_ALL_DATA = (
    "tf_keras.src.engine.training_v1",
    "tensorflow.python.keras.engine.training",
    "tensorflow.python.keras.engine.training_v1",
)


def install() -> None:
    """Called once, when TensorFlow's libraries are loaded."""
    hooking.when_imported("tf_keras.src.callbacks", fit.hook_callbacks)
    hooking.when_imported("tf_keras.src.engine.training", _hook_metrics)
    for name in _FED_ALL_DATA:
        hooking.when_imported(name, _hook_fit_on_all_data)
    if learning_rate.is_scaled():
        hooking.when_imported("tf_keras.src.callbacks", learning_rate.hook_callbacks)
    layers = "tf_keras.src.layers.normalization.batch_normalization"
    hooking.when_imported(layers, _hook_batch_norm)
    hooking.when_imported("tf_keras.src.losses", _hook_losses)
    hooking.when_imported("tf_keras.src.metrics.base_metric", parts.hook_metrics)
    hooking.when_imported("tf_keras.src.engine.base_layer", parts.hook_layers)


def _hook_fit_on_all_data(module: ModuleType) -> None:
    hooking.before(module, "Model.fit", functools.partial(_tell, module.__name__))


def _tell(name: str, _model: Any) -> None:
    """Once, on rank 0: `name` is the module whose fit begins."""
    package = name.partition(".src")[0].partition(".engine")[0]
    session = name.endswith("_v1")
    log.once(
        f"fit() of {package}{' without eager execution' if session else ''}: every rank trains on "
        "all of each batch, so it is right and no faster than one process. To share the work, use "
        f"keras or tf_keras{' with eager execution' if session else ''}",
        key=f"fit of {name}",
    )


def _hook_metrics(module: ModuleType) -> None:
    makes = {"_validate_and_get_metrics_result": fit.over_ranks}
    hooking.wrap_in_subclasses(module, "Model", makes)


def _hook_losses(module: ModuleType) -> None:
    keras = losses.Keras(lambda tensor: getattr(tensor, "_keras_mask", None), _put_mask)
    makes = {"__call__": lambda original: losses.on_part(keras, original)}
    hooking.wrap_in_subclasses(module, "Loss", makes)


def _put_mask(tensor: Any, mask: Any) -> None:
    tensor._keras_mask = mask


def _hook_batch_norm(module: ModuleType) -> None:
    hooking.wrap(module, "BatchNormalizationBase._moments", batch_norm.over_ranks)
    hooking.wrap(module, "BatchNormalizationBase.build", _unfused)
    hooking.wrap(module, "BatchNormalizationBase._fused_batch_norm", _fused)


def _unfused(build: Any) -> Any:
    """tf_keras's fused kernel computes the moments inside, of this rank's samples."""

    def build_unfused(self: Any, input_shape: Any) -> Any:
        if batch_norm.is_synchronized(self):
            self.fused = False
        return build(self, input_shape)

    return build_unfused


def _fused(original: Any) -> Any:
    def fused_batch_norm(self: Any, inputs: Any, mask: Any, training: Any) -> Any:
        if training is True or training == 1:
            batch_norm.say_if_of_part(self)
            training = not batch_norm.is_tried(self)
        return original(self, inputs, mask, training)

    return fused_batch_norm
