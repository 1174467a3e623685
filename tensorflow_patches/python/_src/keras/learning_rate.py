"""TF_MPI_BATCH=per-rank:linear or per-rank:sqrt: a larger learning rate for the larger batch.

From its first `fit` on, an optimizer computes updates with the learning rate times a factor. The
script, its schedules and callbacks see, set and save the rate without the factor, so it is never
applied twice.
"""

from __future__ import annotations

import math
from typing import Any

from tensorflow.mpi import config
from tensorflow.mpi._src.keras import optimizers as keras_optimizers
from tensorflow.mpi._src.runtime import group

_FACTOR = "_tf_mpi_learning_rate_factor"


def is_scaled() -> bool:
    return config.rate_scale() != "none"


def factor() -> float:
    scaling = {"none": 1.0, "linear": float(group.size), "sqrt": math.sqrt(group.size)}
    return scaling[config.rate_scale()]


def fit_begins(callbacks: Any) -> None:
    """Called before a CallbackList's on_train_begin."""
    model = callbacks.model
    optimizers = _with_inner(getattr(model, "optimizer", None))
    if all(hasattr(optimizer, _FACTOR) for optimizer in optimizers):
        return
    for optimizer in optimizers:
        vars(optimizer)[_FACTOR] = factor()
    # train_on_batch may have traced the train function without the factor.
    model.train_function = None
    model.train_function = model.make_train_function() or model.train_function


def _with_inner(optimizer: Any) -> list[Any]:
    if optimizer is None:
        return []
    inner = [getattr(optimizer, "inner_optimizer", None), *getattr(optimizer, "optimizers", ())]
    return [optimizer, *(one for each in inner for one in _with_inner(each))]


def scaled(optimizer: Any, rate: Any) -> Any:
    """`rate` with the factor, if an update of `optimizer` is under way."""
    own = vars(optimizer).get(_FACTOR)
    return rate if own is None or not keras_optimizers.is_updating() else rate * own


def scaling(rate: Any) -> Any:
    """Wraps the method or property that returns an optimizer's rate."""
    if isinstance(rate, property):
        return property(scaling(rate.fget), rate.fset)
    return lambda self, *args: scaled(self, rate(self, *args))
