"""Restores the Python state that a trace has changed and that one process, without it, would not.

That is the states of random and NumPy; and random generators, numbers, tensors and the contents of
lists, dicts and sets that are attributes of the model, of its layers, or of the losses and metrics
that the trace calls, or globals of their modules.
"""

from __future__ import annotations

import contextlib
import copy
import random
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.mpi._src.global_batch import batch
from tensorflow.mpi._src.runtime import threads

_GENERATORS = (random.Random, np.random.RandomState, np.random.Generator)
_NUMBERS = (int, float)  # not bool: Keras's flags, such as `built`
_PLAIN = (*_NUMBERS, str)
_CONTAINERS = (list, dict, set)
_MOST = 100_000  # elements of one owner's lists, dicts and sets; what is beyond is not restored
_DEPTH = 3  # of lists in lists
_ABSENT = object()
# Attributes in which Keras itself keeps tensors of a call.
_OF_KERAS = {"_losses", "_eager_losses", "_loss_ids", "_call_result"}

_local = threading.local()  # .called: the states of losses and metrics, by id, in only_traced()


def note_call(owner: Any) -> None:
    """Called before a method of a loss or a metric runs, which may change its attributes."""
    called = getattr(_local, "called", None)
    if called is not None and id(owner) not in called:
        called[id(owner)] = _State(owner)


@contextlib.contextmanager
def only_traced(model: Any, changed: list[str] | None = None) -> Iterator[None]:
    """Restores Python state after a trace of `model`. What the trace builds stays built, and keeps
    the numbers that building sets.

    Args:
      changed: receives descriptions of what the trace changed and an eager step may read.
    """
    generator_states = random.getstate(), np.random.get_state()
    layers = [model, *model._flatten_layers(include_self=False)]
    tracked, modules = _tracked(layers[1:]), _modules(layers)
    states = [_State(one) for one in (*layers, *filter(_is_of_script, modules))]
    counters = [_State(one) for one in tracked]  # an eager step does not branch on them
    called: dict[int, _State] = {}
    try:
        with (
            _copies_of_generators([*layers, *tracked, *modules]),
            threads.inside(_local, called=called),
        ):
            yield
    finally:
        random.setstate(generator_states[0])
        np.random.set_state(generator_states[1])
        found = [name for one in (*states, *called.values()) for name in one.restore()]
        for one in counters:
            one.restore()
        if changed is not None:
            changed += found


class _State:
    """The attributes of `owner` and the contents of its lists, dicts and sets."""

    def __init__(self, owner: Any) -> None:
        self.owner = owner
        self._built = _built(owner)
        self._attributes = dict(getattr(owner, "__dict__", {}))
        self._contents: list[tuple[str, Any, list[Any]]] = []  # (name, container, items)
        self._room = _MOST
        for name, one in self._attributes.items():
            if name not in _OF_KERAS:
                self._keep(name, one, _DEPTH)

    def _keep(self, name: str, one: Any, depth: int) -> None:
        if not isinstance(one, _CONTAINERS) or len(one) > self._room:
            return
        # tf_keras's wrappers of lists forbid saving once an item has been removed.
        if not hasattr(one, "_storage"):
            self._contents.append((name, one, _items(one)))
            self._room -= len(one)
        for inner in (one.values() if isinstance(one, dict) else one) if depth else ():
            self._keep(name, inner, depth - 1)

    def restore(self) -> list[str]:
        """Restores them, and describes those that have changed."""
        changed = []
        for name, container, items in self._contents:
            if _has_changed(items, _items(container), is_public=name[0] != "_"):
                _put(container, items)
                changed.append(name)
        is_built_since = _built(self.owner) != self._built
        for name, now in list(getattr(self.owner, "__dict__", {}).items()):
            before = self._attributes.get(name, _ABSENT)
            if now is before or name in _OF_KERAS:
                continue
            if type(now) in _NUMBERS:
                kept = now == before or (is_built_since and type(before) not in _NUMBERS)
            else:
                kept = not _is_of_trace(now)
            if kept:
                continue
            if before is _ABSENT:
                delattr(self.owner, name)
            else:
                setattr(self.owner, name, before)
            changed.append(name)
        if isinstance(self.owner, types.ModuleType):
            return [f"the global variable '{name}'" for name in changed]
        return [f"the Python attribute '{name}'" for name in changed]


def _built(owner: Any) -> tuple[Any, ...]:
    """What differs once `owner`, a layer or a metric, has made its variables."""
    is_metric = hasattr(owner, "update_state")
    variables = len(owner.variables) if is_metric else 0
    return getattr(owner, "built", True), getattr(owner, "_built", True), variables


def _items(container: Any) -> list[Any]:
    return list(container.items() if isinstance(container, dict) else container)


def _put(container: Any, items: list[Any]) -> None:
    """Replaces the contents. Bypasses the methods of Keras's subclasses, which track items."""
    kind: Any = next(kind for kind in _CONTAINERS if isinstance(container, kind))
    kind.clear(container)
    (list.extend if kind is list else kind.update)(container, items)


def _has_changed(before: list[Any], now: list[Any], is_public: bool) -> bool:
    """Whether the trace has changed the items, other than by keeping what it made for later, such
    as layers. In private attributes other than _OF_KERAS, Keras keeps no tensors."""
    were = list(map(_identity, before))
    if list(map(_identity, now)) == were:
        return False
    known = set(were)
    new = [one for one in now if _identity(one) not in known]
    leaves = [leaf for one in new for leaf in (one if type(one) is tuple else (one,))]
    if any(map(_is_of_trace, leaves)):
        return True
    return is_public and all(leaf is None or isinstance(leaf, _PLAIN) for leaf in leaves)


def _identity(item: Any) -> Any:
    """Equal for the same object, or the same key and value."""
    return tuple(map(id, item)) if type(item) is tuple else id(item)


def _is_of_trace(one: Any, depth: int = _DEPTH) -> bool:
    """Whether it is a tensor of a graph, or a list, dict or tuple that contains one."""
    if isinstance(one, (list, tuple, dict)):
        values = one.values() if isinstance(one, dict) else one
        return depth > 0 and any(_is_of_trace(inner, depth - 1) for inner in values)
    return isinstance(one, tf.Tensor) and batch.is_symbolic(one)


def _tracked(layers: list[Any]) -> list[Any]:
    """What the layers track, such as tf_keras's generators, which count their seeds."""
    from tensorflow.python.trackable import base

    values = [one for layer in layers for one in vars(layer).values()]
    return [one for one in values if isinstance(one, base.Trackable)]


def _modules(owners: list[Any]) -> list[Any]:
    names = dict.fromkeys(type(one).__module__ for one in owners)
    return [sys.modules[name] for name in ("__main__", *names) if name in sys.modules]


def _is_of_script(module: Any) -> bool:
    return "/site-packages/" not in (getattr(module, "__file__", None) or "").replace("\\", "/")


@contextlib.contextmanager
def _copies_of_generators(owners: list[Any]) -> Iterator[None]:
    """Replaces random generators in the attributes of `owners` by copies."""
    found = [
        (attributes, name, value)
        for attributes in [vars(one) for one in owners if hasattr(one, "__dict__")]
        for name, value in attributes.items()
        if isinstance(value, _GENERATORS) and not isinstance(value, random.SystemRandom)
    ]
    for attributes, name, generator in found:
        attributes[name] = copy.deepcopy(generator)
    try:
        yield
    finally:
        for attributes, name, generator in found:
            attributes[name] = generator
