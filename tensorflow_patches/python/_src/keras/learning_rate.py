"""TF_MPI_SCALE_LR: a larger learning rate for the larger batch of TF_MPI_BATCH=per-rank.

An optimizer that `fit` trains with computes its updates with the learning rate times a factor. What
the script, its schedules and its callbacks see, set and save is the rate without it, so it is
never applied twice.
"""

from __future__ import annotations

import functools
import math
from types import ModuleType
from typing import Any

from tensorflow.mpi import config
from tensorflow.mpi._src.keras import optimizers as keras_optimizers
from tensorflow.mpi._src.runtime import hooking, hooks

_FACTOR = "_tf_mpi_learning_rate_factor"


def install() -> None:
    """Called once, when TensorFlow's libraries are loaded."""
    if hooks.size == 1 or config.get("TF_MPI_SCALE_LR") == "none":
        return
    hooking.when_imported("keras.src.callbacks.callback_list", _hook_callbacks)
    hooking.when_imported("tf_keras.src.callbacks", _hook_callbacks)
    hooking.when_imported("keras.src.optimizers.base_optimizer", _hook_keras)
    hooking.when_imported("tf_keras.src.optimizers.optimizer", _hook_tf_keras)
    hooking.when_imported("tf_keras.src.optimizers.legacy.optimizer_v2", _hook_legacy)


def factor() -> float:
    """What learning rates are multiplied by."""
    scaling = {"none": 1.0, "linear": float(hooks.size), "sqrt": math.sqrt(hooks.size)}
    return scaling[config.get("TF_MPI_SCALE_LR")]


def _hook_callbacks(module: ModuleType) -> None:
    original = module.CallbackList.on_train_begin

    @functools.wraps(original)
    def on_train_begin(self: Any, *args: Any, **kwargs: Any) -> Any:
        _fit_begins(self.model)
        return original(self, *args, **kwargs)

    module.CallbackList.on_train_begin = on_train_begin


def _fit_begins(model: Any) -> None:
    optimizers = _with_inner(getattr(model, "optimizer", None))
    if all(hasattr(optimizer, _FACTOR) for optimizer in optimizers):
        return
    for optimizer in optimizers:
        vars(optimizer)[_FACTOR] = factor()
    # train_on_batch may have traced it without the factor.
    model.train_function = None
    model.train_function = model.make_train_function() or model.train_function


def _with_inner(optimizer: Any) -> list[Any]:
    if optimizer is None:
        return []
    inner = [getattr(optimizer, "inner_optimizer", None), *getattr(optimizer, "optimizers", ())]
    return [optimizer, *(one for each in inner for one in _with_inner(each))]


def _scaled(optimizer: Any, rate: Any) -> Any:
    own = vars(optimizer).get(_FACTOR)
    return rate if own is None or not keras_optimizers.is_updating() else rate * own


def _hook_keras(module: ModuleType) -> None:
    original = module.BaseOptimizer._get_current_learning_rate

    @functools.wraps(original)
    def current(self: Any) -> Any:
        return _scaled(self, original(self))

    module.BaseOptimizer._get_current_learning_rate = current


def _hook_tf_keras(module: ModuleType) -> None:
    original = module._BaseOptimizer.learning_rate

    def current(self: Any) -> Any:
        return _scaled(self, original.fget(self))

    module._BaseOptimizer.learning_rate = property(current, original.fset)


def _hook_legacy(module: ModuleType) -> None:
    original = module.OptimizerV2._decayed_lr

    @functools.wraps(original)
    def decayed(self: Any, var_dtype: Any) -> Any:
        return _scaled(self, original(self, var_dtype))

    module.OptimizerV2._decayed_lr = decayed
