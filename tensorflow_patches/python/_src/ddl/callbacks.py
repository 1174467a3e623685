"""DDL's callbacks, for the Keras that is given."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
from tensorflow.mpi._src.ddl import api, ops
from tensorflow.mpi._src.messaging import graph_collectives


class _Metrics:
    """To be the first: at an epoch's end `logs` are the averages of the ranks', for the others."""

    def on_epoch_end(self, epoch: Any, logs: Any = None) -> None:
        if not logs or api.size() == 1:
            return
        names = sorted(logs)
        mine = np.array([float(logs[name]) for name in names], np.float64)
        means = graph_collectives.collective("allreduce", mine, "DDLCallback", "average", 0)
        for name, mean in zip(names, means, strict=True):
            logs[name] = float(mean)


class _Variables:
    """To be the last: before the first batch rank 0's variables become every rank's."""

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
    base = keras.callbacks.Callback
    return types.SimpleNamespace(
        DDLCallback=type("DDLCallback", (_Metrics, base), {}),
        DDLGlobalVariablesCallback=type("DDLGlobalVariablesCallback", (_Variables, base), {}),
    )
