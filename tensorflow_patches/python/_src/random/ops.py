"""TensorFlow's seeds: unseeded ops get seeds that are the same on all ranks.

The kernel of an op without a seed would draw a random one. Here the op gets a seed that is the same
on all ranks. In eager code all calls from one place get one seed, so TensorFlow reuses one cached
kernel, whose sequence continues.
"""

from __future__ import annotations

import itertools
import math
import sys
from typing import Any

import tensorflow as tf
from tensorflow.mpi._src.random import entropy

# Modules whose ops have kernels that continue a sequence in eager code.
_CONTINUE = {"tensorflow.python.ops.random_ops", "tensorflow.python.ops.candidate_sampling_ops"}
_MAX_SEED = 2**31 - 1

_generations = itertools.count(1)
_cache_generation = 0  # of the kernel cache: clearing it restarts the sequences


def cache_cleared(_context: Any) -> None:
    global _cache_generation
    _cache_generation = next(_generations)


def seeded(get_seed: Any) -> Any:
    """Wraps random_seed.get_seed, which returns an op's two seeds."""

    def seeds(op_seed: Any) -> Any:
        found = get_seed(op_seed)
        if found != (None, None) or not entropy.is_shared():
            return found
        frame = sys._getframe(1)
        if entropy.package_of(frame) != "tensorflow":
            return found  # the script only asks which seeds an op would get

        if tf.executing_eagerly() and frame.f_globals["__name__"] in _CONTINUE:
            drawn = entropy.derive(
                62, "op", entropy.place_of(frame, "tensorflow"), _cache_generation
            )
        else:
            drawn = entropy.bits(62, "graph or dataset", entropy.place_of(frame))
        return drawn % _MAX_SEED or 1, (drawn >> 31) % _MAX_SEED

    return seeds


def without_clock(set_seed: Any) -> Any:
    """Wraps a function that sets the global seed: for the current time, ranks set the same one."""
    return lambda seed: set_seed(entropy.instead_of_clock(seed, ("tensorflow",)))


def same_ints_on_ranks(original: Any) -> Any:
    """Wraps non_deterministic_ints, with which Generator.from_non_deterministic_state begins."""

    def ints(shape: Any, dtype: Any = None) -> Any:
        dtype = dtype or tf.int64
        size = tf.get_static_value(shape)
        if size is None or not tf.executing_eagerly() or not entropy.is_shared():
            return original(shape, dtype)
        frame = sys._getframe(1)
        place = entropy.place_of(frame)
        words = [entropy.bits(63, "ints", place) for _ in range(math.prod(map(int, size)))]
        return tf.cast(tf.reshape(tf.constant(words, tf.int64), size), dtype)

    return ints
