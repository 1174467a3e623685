"""TensorFlow's random ops: unseeded ones alike on all ranks; other numbers for other samples.

- An op without a seed, in a script that sets none, would draw one at random in its kernel. Here it
  gets one that is the same on all ranks. In eager code it is the same at each call from one place,
  whose kernel then goes on in its sequence.
- A step that each rank runs on its part of a batch draws for its own samples: where the first
  dimension of what is drawn is that of the samples, the rank is mixed in, also with a seed of the
  script's. What has no such dimension (one decision for the whole batch) is alike on all ranks.
- So in a loop of the script's own, once it has taken a part of a dataset: there, whatever has
  dimensions is drawn apart inside a tape or a tf.function.

Stateless ops with a seed of the script's own are left alone.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
from collections.abc import Callable
from typing import Any

from tensorflow.mpi._src.average import scope
from tensorflow.mpi._src.random import compiled_ops, entropy
from tensorflow.mpi._src.runtime import group, threads

# Modules whose ops, in eager code, have kernels that go on in a sequence of their own.
_GO_ON = {"tensorflow.python.ops.random_ops", "tensorflow.python.ops.candidate_sampling_ops"}
_MANY = 2**31 - 1
_ODD = 0x9E3779B1
_STRIDE = 2**40  # numbers: more than one op draws

_local = threading.local()  # .samples, .inside
_caches = itertools.count(1)
_cache = 0  # which of the kernel caches, which forget where their sequences are


def cache_cleared(_context: Any) -> None:
    global _cache
    _cache = next(_caches)


def seeded(get_seed: Any) -> Any:
    def seeds(op_seed: Any) -> Any:
        found = get_seed(op_seed)
        if found != (None, None) or not entropy.is_shared():
            return found
        frame = sys._getframe(1)
        if entropy.package_of(frame) != "tensorflow":
            return found  # the script only asks which seeds an op would have
        from tensorflow.python.eager import context

        if context.executing_eagerly() and frame.f_globals["__name__"] in _GO_ON:
            drawn = entropy.derived(62, "op", entropy.place_of(frame, "tensorflow"), _cache)
        else:
            drawn = entropy.bits(62, "graph or dataset", entropy.place_of(frame))
        return drawn % _MANY or 1, (drawn >> 31) % _MANY

    return seeds


def by_clock(set_seed: Any) -> Any:
    return lambda seed: set_seed(entropy.instead_of_clock(seed, ("tensorflow",)))


def alike_ints(original: Any) -> Any:
    """Generator.from_non_deterministic_state draws its state so."""

    def ints(shape: Any, dtype: Any = None) -> Any:
        import tensorflow as tf

        dtype = dtype or tf.int64
        size = tf.get_static_value(shape)
        if size is None or not tf.executing_eagerly() or not entropy.is_shared():
            return original(shape, dtype)
        frame = sys._getframe(1)
        count = 1
        for length in size:
            count *= int(length)
        place = entropy.place_of(frame)
        words = [entropy.bits(63, "ints", place) for _ in range(count)]
        return tf.cast(tf.reshape(tf.constant(words, tf.int64), size), dtype)

    return ints


# What a step draws for its samples


def for_samples(rows: int | None, model: Any) -> contextlib.AbstractContextManager[None]:
    """This thread traces or runs a step of `model` on this rank's `rows` samples.

    rows: None for as many as come.
    """
    return threads.inside(_local, samples=(rows, model))


def for_whole_batch() -> contextlib.AbstractContextManager[None]:
    """This thread traces or runs a step that every rank has the whole batch of: draws are alike."""
    return threads.inside(_local, whole=True)


def is_in_step() -> bool:
    """Whether is_drawn_apart may be true here; cheap."""
    if getattr(_local, "whole", False):
        return False
    return getattr(_local, "samples", None) is not None or scope.is_shared_out()


def is_drawn_apart(shape: Any) -> bool:
    """Whether what is drawn here, of `shape`, is for this rank's samples."""
    if not entropy.is_shared() or getattr(_local, "whole", False):
        return False
    samples = getattr(_local, "samples", None)
    if samples is None:
        return scope.is_shared_out() and _in_own_step() and _sizes(shape) != ()
    sizes, (rows, model) = _sizes(shape), samples
    first = sizes[:1]
    if first in ((), (1,)):
        return first == (rows,)
    if first == (None,):
        return True
    multiple = rows is not None and rows > 1 and first[0] % rows == 0
    return multiple and not _is_of_weights(sizes, model)


def _is_of_weights(sizes: tuple[int | None, ...], model: Any) -> bool:
    """Whether noise of these sizes is for a matrix that `model` trains, not for samples.

    Their number may happen to divide the matrix's rows. What has one dimension is for samples.
    """
    if len(sizes) < 2 or not getattr(model, "built", False):
        return False
    return any(tuple(variable.shape) == sizes for variable in model.trainable_variables)


def _in_own_step() -> bool:
    from tensorflow.python import pywrap_tfe
    from tensorflow.python.framework import ops

    return ops.inside_function() or not pywrap_tfe.TFE_Py_TapeSetIsEmpty()


def _sizes(shape: Any) -> tuple[int | None, ...]:
    """Its dimensions, None for those unknown. `shape` may be a tensor."""
    import tensorflow as tf
    from tensorflow.python.framework import tensor_util

    if not isinstance(shape, tf.TensorShape):
        shape = tf.convert_to_tensor(shape)
        if shape.shape.rank == 0:
            return (tensor_util.constant_value(shape),)
        shape = tensor_util.constant_value_as_shape(shape)
    return (None,) if shape.rank is None else tuple(shape)


def apart(op: Callable[..., Any]) -> Any:
    def drawn(*args: Any, **kwargs: Any) -> Any:
        seeded = kwargs.get("seed2") or kwargs.get("seed")
        if not seeded or not is_in_step() or getattr(_local, "inside", False):
            return op(*args, **kwargs)
        with threads.inside(_local, inside=True):
            if not is_drawn_apart(_drawn_shape(op.__name__, *args, **kwargs)):
                return op(*args, **kwargs)
            if op.__name__ in compiled_ops.OPS and compiled_ops.is_compiled():
                return compiled_ops.OPS[op.__name__](*args, **kwargs)
        kwargs["seed2"] = (int(kwargs["seed2"] or 0) + group.rank * _ODD) % _MANY
        return op(*args, **kwargs)

    return drawn


def _drawn_shape(op: str, /, *args: Any, **kwargs: Any) -> Any:
    first, second, *_ = [*args, *kwargs.values()]
    if op == "multinomial":
        return first.shape
    if op in ("random_gamma", "random_poisson_v2") and first.shape == (0,):
        return second.shape
    return first


def key_apart(prepare: Any) -> Any:
    def key_and_counter(self: Any, shape: Any) -> Any:
        if not is_drawn_apart(shape):
            return prepare(self, shape)
        import tensorflow as tf

        # Its state must stay alike on all ranks, whose parts may differ in size.
        key, counter = prepare(self, tf.constant([_STRIDE], tf.int64))
        if group.rank:
            key = tf.bitwise.bitwise_xor(key, tf.constant(group.rank * _ODD, key.dtype))
        return key, counter

    return key_and_counter
