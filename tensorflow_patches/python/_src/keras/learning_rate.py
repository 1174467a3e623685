"""TF_MPI_BATCH=per-rank:linear or per-rank:sqrt: a larger learning rate for the larger batch.

In the steps of `fit`, optimizers compute updates with the learning rate times a factor. The script,
its schedules and callbacks see, set and save the rate without the factor, so it is never applied
twice. Steps on the script's own batches (train_on_batch, custom loops) use the rate as it is.
"""

from __future__ import annotations

import math
from typing import Any

from tensorflow.mpi import config
from tensorflow.mpi._src.average import scope
from tensorflow.mpi._src.keras import optimizers
from tensorflow.mpi._src.runtime import group


def is_scaled() -> bool:
    return config.rate_scale() != "none"


def _factor() -> float:
    return float(group.size) if config.rate_scale() == "linear" else math.sqrt(group.size)


def _scaled(rate: Any) -> Any:
    """`rate` with the factor, if an update in a step of `fit` is under way."""
    is_in_fit = scope.is_on_part() or scope.is_replicated_step()
    return rate * _factor() if is_in_fit and optimizers.is_updating() else rate


def scaling(rate: Any) -> Any:
    """Wraps the method or property that returns an optimizer's rate."""
    if isinstance(rate, property):
        return property(scaling(rate.fget), rate.fset)
    return lambda self, *args: _scaled(rate(self, *args))
