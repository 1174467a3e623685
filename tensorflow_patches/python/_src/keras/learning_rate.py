"""TF_MPI_SCALE_LR: a larger learning rate for the larger batch of TF_MPI_BATCH=per-rank.

An optimizer that `fit` trains with computes its updates with the learning rate times a factor. What
the script, its schedules and its callbacks see, set and save is the rate without it, so it is
never applied twice.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

from tensorflow.mpi import config
from tensorflow.mpi._src.interpose import hooking
from tensorflow.mpi._src.keras import optimizers as keras_optimizers
from tensorflow.mpi._src.runtime import group

_FACTOR = "_tf_mpi_learning_rate_factor"


def install() -> None:
    """Called once, when TensorFlow's libraries are loaded."""
    if is_scaled():
        hooking.when_imported("keras.src.callbacks.callback_list", hook_callbacks)
        hooking.when_imported("keras.src.optimizers.base_optimizer", _hook_optimizer)


def is_scaled() -> bool:
    """Whether learning rates are multiplied by anything."""
    return bool(config.get("TF_MPI_SCALE_LR") != "none")


def factor() -> float:
    """What learning rates are multiplied by."""
    scaling = {"none": 1.0, "linear": float(group.size), "sqrt": math.sqrt(group.size)}
    return scaling[config.get("TF_MPI_SCALE_LR")]


def hook_callbacks(module: ModuleType) -> None:
    """Of a module that has the CallbackList."""
    hooking.before(module, "CallbackList.on_train_begin", lambda self: _fit_begins(self.model))


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


def scaled(optimizer: Any, rate: Any) -> Any:
    """`rate` as `optimizer` updates by it, if an update is under way."""
    own = vars(optimizer).get(_FACTOR)
    return rate if own is None or not keras_optimizers.is_updating() else rate * own


def _hook_optimizer(module: ModuleType) -> None:
    hooking.wrap(
        module,
        "BaseOptimizer._get_current_learning_rate",
        lambda rate: lambda self: scaled(self, rate(self)),
    )
