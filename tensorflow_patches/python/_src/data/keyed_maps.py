"""Parallel maps that draw random numbers: each element gets a key for its draws.

Even in one process such maps draw in any order, so nothing is lost if each element has a key: its
random numbers are then the same on every rank, rank 0 need not send it, and the map can be applied
to a rank's own samples only (selection.py). Keys are the elements of a random dataset, which
differ in each iteration (iterations.py).
"""

from __future__ import annotations

import itertools
import zlib
from typing import Any

import tensorflow as tf
from tensorflow.mpi._src.data import contents, determinism
from tensorflow.mpi._src.interpose import hooking
from tensorflow.mpi._src.random import by_sample, entropy

_numbers = itertools.count()  # of such maps, in program order


def mapping(original: Any) -> Any:
    """Wraps map_op._map_v2."""

    @hooking.without_autograph
    def mapped(
        dataset: Any, function: Any, num_parallel_calls: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        made = original(dataset, function, num_parallel_calls, *args, **kwargs)
        if num_parallel_calls is None or not entropy.is_shared():
            return made
        if hasattr(function, "_tf_mpi_own"):  # our map, made from one that was wrapped before
            return made
        keyed = _keyed(dataset, made, function)
        if keyed is None:
            return made
        with_keys = original(*keyed, num_parallel_calls, *args, **kwargs)
        return with_keys if determinism.is_harmless(with_keys._map_func) else made

    return mapped


def _keyed(dataset: Any, made: Any, function: Any) -> tuple[Any, Any] | None:
    """(elements with keys, function that maps them); None if keys are not needed or cannot help."""
    from tensorflow.python.autograph.core import ag_ctx
    from tensorflow.python.autograph.impl import api

    if not tf.executing_eagerly() or not hasattr(made, "_map_func"):
        return None
    if determinism.is_harmless(made._map_func) or determinism.is_made_by_python(made):
        return None
    traced = made._map_func.function
    digest = repr(contents.of_function(traced, traced.graph.as_graph_def()))
    # Two maps with one function draw independently, as for two views of a sample.
    seed = zlib.crc32(f"{next(_numbers)} {digest}".encode())
    keys = tf.data.Dataset.random(seed, rerandomize_each_iteration=True)
    spec = dataset.element_spec
    converted = api.tf_convert(function, ag_ctx.control_status_ctx())  # as tf.data does it

    @hooking.without_autograph
    def of_keyed(element: Any, key: Any) -> Any:
        args = element if type(spec) is tuple else (element,)
        with by_sample.keyed(key):
            return converted(*args)

    of_keyed.__name__ = getattr(function, "__name__", "a function")  # for messages
    of_keyed.__module__ = getattr(function, "__module__", None) or __name__
    pairs = keys.batch(2, drop_remainder=True)
    pairs._tf_mpi_keys = True  # not samples: see transformations.has_batches
    return tf.data.Dataset.zip((dataset, pairs)), of_keyed
