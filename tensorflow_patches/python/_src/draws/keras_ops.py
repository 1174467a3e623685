"""keras.random without a seed, inside a step: other numbers for other samples.

Keras's global generator is alike on all ranks. Generators that a model holds are set apart when
`fit` begins (keras/fit.py), and are left alone here.
"""

from __future__ import annotations

import inspect
import threading
from types import ModuleType
from typing import Any

from tensorflow.mpi._src.draws import entropy, ops
from tensorflow.mpi._src.runtime import hooking, hooks

_OF_SHAPE = ("normal", "uniform", "truncated_normal", "randint", "gamma", "binomial", "beta")
_OF_TENSOR = ("categorical", "dropout")

_local = threading.local()  # .apart


def install() -> None:
    """Called once, when TensorFlow's libraries are loaded."""
    if entropy.is_shared():
        hooking.when_imported("keras.src.backend.tensorflow.random", _hook)


def _hook(module: ModuleType) -> None:
    for name in (*_OF_SHAPE, *_OF_TENSOR):
        hooking.wrap(module, name, _apart)
    hooking.wrap(module, "_cast_seed", _of_this_rank)


def _apart(op: Any) -> Any:
    signature = inspect.signature(op)

    def drawn(*args: Any, **kwargs: Any) -> Any:
        before = getattr(_local, "apart", False)
        _local.apart = False
        if hooks.rank > 0 and ops.is_in_step():
            given = signature.bind(*args, **kwargs).arguments
            if _is_shared(given.get("seed")):
                _local.apart = ops.is_drawn_apart(_shape(op, next(iter(given.values()))))
        try:
            return op(*args, **kwargs)
        finally:
            _local.apart = before

    return drawn


def _is_shared(seed: Any) -> bool:
    """Whether `seed` goes on alike on all ranks; a number gives the same draws at each call."""
    if seed is None:
        return True
    return hasattr(seed, "state") and not hasattr(seed.state, "_tf_mpi_drawing")


def _shape(op: Any, of: Any) -> Any:
    return of.shape if op.__name__ in _OF_TENSOR else of


def _of_this_rank(cast: Any) -> Any:
    def seed_of_this_rank(seed: Any) -> Any:
        drawn = cast(seed)
        if getattr(_local, "apart", False):
            import tensorflow as tf

            drawn = tf.bitwise.bitwise_xor(drawn, tf.constant([0, hooks.rank << 20], drawn.dtype))
        return drawn

    return seed_of_this_rank
