"""hvd.DistributedGradientTape: a tape whose gradients are reduced over the ranks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.mpi._src.horovod import gradients
from tensorflow.mpi._src.horovod.collectives import Average
from tensorflow.mpi._src.horovod.process_sets import ProcessSet, global_process_set
from tensorflow.mpi._src.horovod.reductions import Compression


class _Reducing:
    """Mixed in before the class of the original tape."""

    _hvd: gradients.Reducer

    def register_local_source(self, source: Any) -> None:
        self._hvd.register_local(source)

    def gradient(
        self, target: Any, sources: Any, output_gradients: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        kwargs.pop("use_generic_names", None)
        own = super().gradient(target, sources, output_gradients, *args, **kwargs)  # type: ignore[misc]
        reduced = self._hvd.reduce(tf.nest.flatten(own), tf.nest.flatten(sources))
        return tf.nest.pack_sequence_as(sources, reduced)

    def get_local_and_global_gradients(
        self, target: Any, sources: Any, output_gradients: Any = None, **kwargs: Any
    ) -> tuple[list[Any], list[Any]]:
        """Pairs (source, gradient) of the local sources, and of the others."""
        found = self.gradient(target, sources, output_gradients, **kwargs)
        local: list[Any] = []
        others: list[Any] = []
        for source, gradient in zip(sources, found, strict=True):
            (local if self._hvd.is_local(source) else others).append((source, gradient))
        return local, others


def DistributedGradientTape(
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """A tape with everything that `gradtape` has recorded."""
    given = dict(locals())
    original = type(given.pop("gradtape"))
    kind = type(original.__name__, (_Reducing, original), {"__module__": original.__module__})
    tape: Any = object.__new__(kind)
    tape.__dict__.update(gradtape.__dict__)
    tape._hvd = gradients.Reducer(name="DistributedGradientTape", persistent=False, **given)
    return tape


def PartialDistributedGradientTape(
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Like DistributedGradientTape, but does not reduce the gradients of `local_layers`."""
    given = dict(locals())
    layers = given.pop("local_layers")
    tape = DistributedGradientTape(**given)
    for variable in variables_of(layers):
        tape.register_local_source(variable)
    return tape


def variables_of(local_layers: Any) -> list[Any]:
    """The trainable variables of one layer or several; ValueError if one is not a layer."""
    layers = local_layers if isinstance(local_layers, (list, tuple)) else [local_layers]
    layers = [layer for layer in layers if layer is not None]
    if not all(hasattr(layer, "trainable_weights") for layer in layers):
        raise ValueError("All local layers must be of tf.keras.layers.Layer type.")
    return [variable for layer in layers for variable in layer.trainable_weights]
