"""keras.random inside a step: other numbers for other samples.

Keras's generators, the global one and those that layers hold, go on alike on all ranks. What is
drawn for samples (a mask of dropout) has the rank mixed into its seed; what is drawn for the whole
batch (the strength of a noise) has not.
"""

from __future__ import annotations

import inspect
import threading
from typing import Any

from tensorflow.mpi._src.random import ops
from tensorflow.mpi._src.runtime import group

_OF_TENSOR = ("categorical", "dropout")

_local = threading.local()  # .apart


def apart(op: Any) -> Any:
    signature = inspect.signature(op)

    def drawn(*args: Any, **kwargs: Any) -> Any:
        before = getattr(_local, "apart", False)
        _local.apart = False
        if group.rank > 0 and ops.is_in_step():
            given = signature.bind(*args, **kwargs).arguments
            if _goes_on(given.get("seed")) and not _is_one_mask(given.get("noise_shape")):
                _local.apart = ops.is_drawn_apart(_shape(op, next(iter(given.values()))))
        try:
            return op(*args, **kwargs)
        finally:
            _local.apart = before

    return drawn


def _goes_on(seed: Any) -> bool:
    """Whether `seed` is a generator; a number gives the same draws at each call."""
    return seed is None or hasattr(seed, "state")


def _is_one_mask(noise_shape: Any) -> bool:
    """Of dropout: whether all samples share what is drawn."""
    return noise_shape is not None and len(noise_shape) > 0 and noise_shape[0] == 1


def _shape(op: Any, of: Any) -> Any:
    return of.shape if op.__name__ in _OF_TENSOR else of


def of_this_rank(cast: Any) -> Any:
    def seed_of_this_rank(seed: Any) -> Any:
        drawn = cast(seed)
        if getattr(_local, "apart", False):
            import tensorflow as tf

            drawn = tf.bitwise.bitwise_xor(drawn, tf.constant([0, group.rank << 20], drawn.dtype))
        return drawn

    return seed_of_this_rank
