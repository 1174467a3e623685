"""Keras optimizers update their variables with assign ops, which this release does not average.

So with more than one rank their outermost update call stops with an error. No Keras module is
loaded when TensorFlow's libraries are; a finder on sys.meta_path adds the check as each is
imported, without a change to Keras's files.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from tensorflow.mpi import _hooks

# module -> (class, method through which every update passes)
_TARGETS = {
    "keras.src.optimizers.base_optimizer": ("BaseOptimizer", "apply"),
    "tf_keras.src.optimizers.optimizer": ("_BaseOptimizer", "apply_gradients"),
    "tf_keras.src.optimizers.legacy.optimizer_v2": ("OptimizerV2", "apply_gradients"),
}


def install() -> None:
    """Called once, when TensorFlow's libraries are loaded."""
    if _hooks.size == 1:
        return
    for name in _TARGETS:
        if name in sys.modules:
            _guard(sys.modules[name])
    sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the targets as the other finders do, and guards them once they are loaded."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in _TARGETS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                _guard(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _guard(module: ModuleType) -> None:
    class_name, method = _TARGETS[module.__name__]
    optimizer = getattr(module, class_name)
    _refuse(optimizer, method)
    # Subclasses that override the method are made later; each is guarded as it is made.
    own = vars(optimizer).get("__init_subclass__")

    def init_subclass(cls: Any, **kwargs: Any) -> None:
        if own is not None:
            own.__get__(None, cls)(**kwargs)
        else:
            super(optimizer, cls).__init_subclass__(**kwargs)
        if method in vars(cls):
            _refuse(cls, method)

    optimizer.__init_subclass__ = classmethod(init_subclass)


def _refuse(optimizer: Any, method: str) -> None:
    original = getattr(optimizer, method)

    @functools.wraps(original)
    def refuse(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(
            f"{type(self).__module__.partition('.')[0]} optimizer {type(self).__name__} updates "
            "its variables without TensorFlow's Apply ops, and this release does not average its "
            f"gradients over the {_hooks.size} ranks. Use an optimizer of tf.compat.v1.train in a "
            "loop of your own, or run with TF_MPI_ENABLE=0"
        )

    setattr(optimizer, method, refuse)
