"""tf_keras's fit, evaluate and predict, and batch normalization: what keras/ has for Keras 3.

Where a Session runs the model (after disable_eager_execution), and in tensorflow.python.keras,
every rank is fed all data: as one process, and no faster.
"""

from __future__ import annotations

from typing import Any

from tensorflow.mpi._src.global_batch import losses
from tensorflow.mpi._src.keras import batch_norm
from tensorflow.mpi._src.runtime import log


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


def unfused(build: Any) -> Any:
    """tf_keras's fused kernel computes the moments inside, of this rank's samples."""

    def build_unfused(self: Any, input_shape: Any) -> Any:
        if batch_norm.is_synchronized(self):
            self.fused = False
        return build(self, input_shape)

    return build_unfused


def fused(original: Any) -> Any:
    def fused_batch_norm(self: Any, inputs: Any, mask: Any, training: Any) -> Any:
        if training is True or training == 1:
            batch_norm.say_if_of_part(self)
            training = not batch_norm.is_looked_at()
        return original(self, inputs, mask, training)

    return fused_batch_norm
