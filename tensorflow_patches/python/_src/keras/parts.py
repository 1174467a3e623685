"""Keras 3's losses and metrics in steps that have this rank's part of a batch.

What they do is in global_batch/losses.py, global_batch/metrics.py and global_batch/gradients.py.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from tensorflow.mpi._src.global_batch import gradients, losses, metrics
from tensorflow.mpi._src.interpose import hooking


def install() -> None:
    """Called once, when TensorFlow's libraries are loaded."""
    hooking.when_imported("keras.src.losses.loss", _hook_losses)
    hooking.when_imported("keras.src.metrics.metric", hook_metrics)
    hooking.when_imported("keras.src.layers.layer", hook_layers)
    hooking.when_imported("tensorflow.python.eager.backprop", _hook_tapes)


def _hook_losses(module: ModuleType) -> None:
    keras = losses.Keras(_mask_of, _put_mask)
    makes = {"__call__": lambda original: losses.on_part(keras, original)}
    hooking.wrap_in_subclasses(module, "Loss", makes)


def _mask_of(tensor: Any) -> Any:
    from keras.src import backend

    return backend.get_keras_mask(tensor)


def _put_mask(tensor: Any, mask: Any) -> None:
    from keras.src import backend

    backend.set_keras_mask(tensor, mask)


def hook_metrics(module: ModuleType) -> None:
    """Of a module that has the class Metric."""
    makes = {
        "update_state": metrics.updated,
        "result": metrics.returned,
        "reset_state": metrics.reset,
    }
    hooking.wrap_in_classes(module, "Metric", makes)
    hooking.wrap_in_subclasses(module, "Metric", makes)


def hook_layers(module: ModuleType) -> None:
    """Of a module that has the class Layer."""
    hooking.wrap(module, "Layer.__call__", gradients.noted_layer)


def _hook_tapes(module: ModuleType) -> None:
    hooking.wrap(module, "GradientTape.gradient", gradients.of_whole_batch)
