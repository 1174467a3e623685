"""DDL's callbacks, for Keras 3 or tf_keras."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
from tensorflow.mpi._src.ddl import api, ops
from tensorflow.mpi._src.messaging import graph_collectives


class _Metrics:
    """Averages `logs` over the ranks at the end of an epoch. Must be the first callback, because
    only those after it get the averages."""

    def on_epoch_end(self, epoch: Any, logs: Any = None) -> None:
        if not logs or api.size() == 1:
            return
        for name in sorted(logs):
            mine = np.asarray(logs[name], np.float64)  # F1Score's is an array
            label = f"DDLCallback {name}"
            mean = graph_collectives.collective("allreduce", mine, label, "average", 0)
            logs[name] = mean if mean.ndim else float(mean)


class _Variables:
    """Broadcasts rank 0's variables before the first batch; must be the last callback."""

    model: Any

    def __init__(self) -> None:
        super().__init__()
        self.done = False

    def on_train_batch_begin(self, batch: Any, logs: Any = None) -> None:
        if not self.done:
            self.done = True
            for variable in self.model.variables:
                variable.assign(ops.bcast(variable))


def of(keras: Any) -> types.SimpleNamespace:
    """DDL's callback classes, derived from those of this Keras."""
    base = keras.callbacks.Callback
    return types.SimpleNamespace(
        DDLCallback=type("DDLCallback", (_Metrics, base), {}),
        DDLGlobalVariablesCallback=type("DDLGlobalVariablesCallback", (_Variables, base), {}),
    )
