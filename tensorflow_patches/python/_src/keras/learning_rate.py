"""TF_MPI_BATCH=per-rank:linear or :sqrt: a larger learning rate for the larger batch.

An optimizer that `fit` trains with computes its updates with the learning rate times a factor. What
the script, its schedules and its callbacks see, set and save is the rate without it, so it is
never applied twice.
"""

from __future__ import annotations

import math
from typing import Any

from tensorflow.mpi import config
from tensorflow.mpi._src.keras import optimizers as keras_optimizers
from tensorflow.mpi._src.runtime import group

_FACTOR = "_tf_mpi_learning_rate_factor"


def is_scaled() -> bool:
    """Whether learning rates are multiplied by anything."""
    return config.rate_scale() != "none"


def factor() -> float:
    """What learning rates are multiplied by."""
    scaling = {"none": 1.0, "linear": float(group.size), "sqrt": math.sqrt(group.size)}
    return scaling[config.rate_scale()]


def fit_begins(callbacks: Any) -> None:
    """Before a CallbackList's on_train_begin."""
    model = callbacks.model
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


def scaling(rate: Any) -> Any:
    """Of the method or property by which an optimizer asks for its rate."""
    if isinstance(rate, property):
        return property(scaling(rate.fget), rate.fset)
    return lambda self, *args: scaled(self, rate(self, *args))
