"""Keras optimizers update their variables with assign ops, which this release does not average.

So with more than one rank their outermost update call stops with an error. No Keras module is
loaded when TensorFlow's libraries are: the check is added as each is imported (_imports.py).
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from tensorflow.mpi import _hooks, _imports

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
        _imports.when_imported(name, _guard)


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
