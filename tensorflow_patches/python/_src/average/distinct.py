"""A sparse average holds each row once, so optimizers need not look for duplicates in it.

They would, one by one, with a hash table and a copy of all rows: half the time of an update.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from tensorflow.mpi._src.average import averaging
from tensorflow.mpi._src.runtime import hooking, hooks

_FUNCTION = "_deduplicate_indexed_slices"  # (values, indices) -> the same, each index once
_MODULES = (
    "tensorflow.python.training.optimizer",
    "tf_keras.src.optimizers.legacy.optimizer_v2",
)


def install() -> None:
    """Called once, when TensorFlow's libraries are loaded."""
    if hooks.size > 1:
        for name in _MODULES:
            hooking.when_imported(name, _hook_function)
        hooking.when_imported("tf_keras.src.optimizers.optimizer", _hook_method)


def _hook_function(module: ModuleType) -> None:
    original = getattr(module, _FUNCTION, None)
    if original is None:
        return  # another version, which does it otherwise: slower, and right

    @functools.wraps(original)
    def deduplicate(values: Any, indices: Any) -> Any:
        if averaging.is_distinct(values, indices):
            return values, indices
        return original(values, indices)

    setattr(module, _FUNCTION, deduplicate)


def _hook_method(module: ModuleType) -> None:
    optimizer = getattr(module, "_BaseOptimizer", None)
    original = getattr(optimizer, "_deduplicate_sparse_grad", None)
    if optimizer is None or original is None:
        return

    @functools.wraps(original)
    def deduplicate(self: Any, grads: Any) -> list[Any]:
        done: list[Any] = []
        for gradient in grads:
            values, indices = (getattr(gradient, name, None) for name in ("values", "indices"))
            distinct = indices is not None and averaging.is_distinct(values, indices)
            done += [gradient] if distinct else original(self, [gradient])
        return done

    optimizer._deduplicate_sparse_grad = deduplicate
