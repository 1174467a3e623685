"""A sparse average holds each row once, so optimizers need not look for duplicates in it.

They would, one by one, with a hash table and a copy of all rows: half the time of an update.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from tensorflow.mpi._src.average import carrier
from tensorflow.mpi._src.runtime import hooking

_MODULES = (
    "tensorflow.python.training.optimizer",
    "tf_keras.src.optimizers.legacy.optimizer_v2",
)


def install() -> None:
    """Called once, when TensorFlow's libraries are loaded."""
    for name in _MODULES:
        hooking.when_imported(name, _hook_function)
    hooking.when_imported("tf_keras.src.optimizers.optimizer", _hook_method)


def _hook_function(module: ModuleType) -> None:
    hooking.wrap(module, "_deduplicate_indexed_slices", _unless_distinct)


def _unless_distinct(original: Any) -> Any:
    def deduplicate(values: Any, indices: Any) -> Any:
        if carrier.is_distinct(values, indices):
            return values, indices
        return original(values, indices)

    return deduplicate


def _hook_method(module: ModuleType) -> None:
    hooking.wrap(module, "_BaseOptimizer._deduplicate_sparse_grad", _but_for_distinct)


def _but_for_distinct(original: Any) -> Any:
    def deduplicate(self: Any, grads: Any) -> list[Any]:
        done: list[Any] = []
        for gradient in grads:
            values, indices = (getattr(gradient, name, None) for name in ("values", "indices"))
            distinct = indices is not None and carrier.is_distinct(values, indices)
            done += [gradient] if distinct else original(self, [gradient])
        return done

    return deduplicate
