"""Random ops in a function of tf.data that draw by a key of the sample, rather than by a state.

A parallel map takes numbers from a state in any order. With a key for each sample the numbers are a
function of the sample, and the same on any rank. data/keyed_maps.py decides which functions are
traced in this way, and makes the keys.
"""

from __future__ import annotations

import contextlib
import threading
import zlib
from typing import Any

import tensorflow as tf
from tensorflow.mpi._src.random import philox
from tensorflow.mpi._src.runtime import threads

_local = threading.local()  # .keyed


class _Keyed:
    """A trace in which `key`, two int64 that hold 32 bits each, is the sample's key."""

    def __init__(self, graph: Any, key: Any) -> None:
        self._graph, self._key = graph, key
        self._draws = 0

    def key_and_counter(self, seeds: Any) -> tuple[Any, Any] | None:
        """Philox's key and counter for the next draw with `seeds`; None in code that may run
        several times for a sample: a loop, or a nested function."""
        from tensorflow.python.ops import control_flow_v2_func_graphs

        graph = tf.compat.v1.get_default_graph()
        while isinstance(graph, control_flow_v2_func_graphs.CondBranchFuncGraph):
            graph = graph.outer_graph
        if graph is not self._graph:
            return None
        self._draws += 1
        apart = zlib.crc32(repr(seeds).encode())
        key = tf.bitcast(self._key[:1] + tf.bitwise.left_shift(self._key[1:], 32), tf.uint64)
        return key, tf.constant([0, (self._draws << 32) + apart], tf.uint64)


def keyed(key: Any) -> contextlib.AbstractContextManager[None]:
    """Inside, random ops that are traced in this graph draw by `key`."""
    return threads.inside(_local, keyed=_Keyed(tf.compat.v1.get_default_graph(), key))


def current() -> _Keyed | None:
    return getattr(_local, "keyed", None)


def draw(name: str, given: dict[str, Any]) -> Any:
    """The draw of an op of gen_random_ops by the key; None if it should draw by its state."""
    trace = current()
    if trace is None or not philox.has_stateless_form(name):
        return None
    found = trace.key_and_counter((int(given["seed"] or 0), int(given["seed2"] or 0)))
    return None if found is None else philox.draw_by_key(name, given, *found)


def next_seed(original: Any) -> Any:
    """Wraps SeedGenerator.next of Keras."""

    def next_of_sample(self: Any, *args: Any, **kwargs: Any) -> Any:
        trace = current()
        found = None if trace is None else trace.key_and_counter(self._initial_seed)
        if found is None:
            return original(self, *args, **kwargs)
        return philox.seed_by_key(*found)

    return next_of_sample
