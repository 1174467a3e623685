"""Horovod's callbacks, for Keras 3 or tf_keras."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.mpi._src.horovod import basics, gradients, objects, reductions
from tensorflow.mpi._src.runtime import log
from tensorflow.mpi._src.variables import initial_broadcast


class _Broadcast:
    """Broadcasts rank `root_rank`'s model and optimizer after the first batch, when the optimizer
    has its slots."""

    model: Any

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None) -> None:
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.broadcast_done = False
        self._local: set[Any] = set()
        if local_variables is not None and not isinstance(local_variables, (list, tuple, set)):
            local_variables = [local_variables]
        for variable in local_variables or ():
            if not hasattr(variable, "assign"):
                raise ValueError("All local variables must be of tf.Variable type.")
            self.register_local_var(variable)

    def register_local_var(self, var: Any) -> None:
        """Excludes `var` from the broadcast: each rank keeps its own value."""
        self._local.add(gradients.key_of(var))

    def on_batch_end(self, batch: Any, logs: Any = None) -> None:
        if self.broadcast_done:
            return
        with reductions.on_device(self.device):
            self._broadcast()
        self.broadcast_done = True

    def _broadcast(self) -> None:
        if tf.executing_eagerly():
            mine = [v for v in self.model.variables if gradients.key_of(v) not in self._local]
            optimizer = getattr(self.model, "optimizer", None)
            mine += initial_broadcast.optimizer_variables(optimizer)
            # So that no variable is broadcast twice.
            unique = {gradients.key_of(variable): variable for variable in mine}
            objects.broadcast_variables(unique.values(), self.root_rank)
        else:
            session = tf.compat.v1.keras.backend.get_session()
            session.run(objects.broadcast_global_variables(self.root_rank))


class _MetricAverage:
    """Averages `logs` over the ranks at the end of an epoch, for the callbacks that follow."""

    def __init__(self, device: str = "") -> None:
        super().__init__()
        self.device = device

    def on_epoch_end(self, epoch: Any, logs: Any = None) -> None:
        if not logs:
            return
        names = sorted(logs)
        values = [np.asarray(logs[name], np.float64) for name in names]  # F1Score's is an array
        everyone = objects.allgather_object((names, values), name="MetricAverageCallback")
        for rank, (theirs, _) in enumerate(everyone):
            if theirs != names:
                raise ValueError(
                    f"MetricAverageCallback: the ranks have different metrics: rank "
                    f"{basics.rank()} has {names}, rank {rank} has {theirs}"
                )
        for name, *each in zip(names, *(theirs for _, theirs in everyone), strict=True):
            mean = np.mean(each, axis=0)
            logs[name] = mean if mean.ndim else float(mean)


class _Schedule:
    """Sets the learning rate to initial_lr * multiplier(epoch) from start_epoch to end_epoch."""

    model: Any
    params: dict[str, Any]

    def __init__(
        self,
        initial_lr: float,
        multiplier: Any,
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if initial_lr is None:
            raise ValueError("Parameter `initial_lr` is required")
        self.initial_lr = initial_lr
        self.start_epoch, self.end_epoch = start_epoch, end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.restore_momentum: float | None = None
        self.current_epoch = 0
        if callable(multiplier):
            self.multiplier = multiplier
        else:
            self.multiplier = lambda epoch: multiplier ** (epoch - start_epoch)

    def on_train_begin(self, logs: Any = None) -> None:
        if self.staircase or self.steps_per_epoch:
            return
        if not self.params.get("steps"):
            raise ValueError(
                "Could not autodetect the number of steps per epoch. Please specify the "
                f"steps_per_epoch parameter to the {type(self).__name__}()"
            )
        self.steps_per_epoch = self.params["steps"]

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.current_epoch = epoch

    def on_batch_begin(self, batch: int, logs: Any = None) -> None:
        epoch = self.current_epoch
        if epoch < self.start_epoch or (self.end_epoch is not None and epoch >= self.end_epoch):
            return
        if self.staircase:
            if batch == 0:
                self._adjust(epoch)
        else:
            assert self.steps_per_epoch is not None
            self._adjust(epoch + float(batch) / self.steps_per_epoch)

    def on_batch_end(self, batch: Any, logs: Any = None) -> None:
        if self.restore_momentum is not None:
            self.model.optimizer.momentum.assign(self.restore_momentum)
            self.restore_momentum = None

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if logs is not None:
            logs["lr"] = self._rate()

    def _rate(self) -> float:
        return float(np.asarray(self.model.optimizer.learning_rate))

    def _adjust(self, epoch: float) -> None:
        old, new = self._rate(), self.initial_lr * self.multiplier(epoch)
        rate = self.model.optimizer.learning_rate
        if hasattr(rate, "assign"):
            rate.assign(new)
        else:
            self.model.optimizer.learning_rate = new
        momentum = getattr(self.model.optimizer, "momentum", None)
        if not self.momentum_correction or momentum is None or old == 0:
            return
        if hasattr(momentum, "assign"):
            self.restore_momentum = float(np.asarray(momentum))
            momentum.assign(self.restore_momentum * new / old)
        elif momentum and new != old:
            log.once(
                f"{type(self).__name__}: momentum_correction has no effect, because the momentum "
                f"of {type(self.model.optimizer).__name__} is a constant in its compiled steps"
            )


class _Warmup(_Schedule):
    """Raises the learning rate gradually from initial_lr / hvd.size() to initial_lr."""

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def multiplier(epoch: float) -> float:
            assert self.steps_per_epoch is not None
            size = basics.size()
            epoch += 1.0 / self.steps_per_epoch  # an epoch's last batch gets a whole number
            return 1.0 / size * (epoch * (size - 1) / warmup_epochs + 1)

        super().__init__(
            initial_lr,
            multiplier,
            start_epoch=0,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        super().on_epoch_end(epoch, logs)
        if self.end_epoch == epoch + 1 and self.verbose > 0 and basics.rank() == 0:
            print(
                f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {self._rate():g}."
            )


class _CommitState:
    """Calls state.commit() every `batches_per_commit` batches and at the end of an epoch."""

    def __init__(self, state: Any, batches_per_commit: int = 1) -> None:
        super().__init__()
        self.state = state
        self.batches_per_commit = batches_per_commit
        self.batches_remaining = batches_per_commit

    def on_train_begin(self, logs: Any = None) -> None:
        self.batches_remaining = self.batches_per_commit

    def on_batch_end(self, batch: Any, logs: Any = None) -> None:
        self.batches_remaining -= 1
        if self.batches_remaining == 0:
            self.state.commit()
            self.batches_remaining = self.batches_per_commit

    def on_epoch_end(self, epoch: Any, logs: Any = None) -> None:
        self.state.commit()


class _UpdateBatchState:
    """Keeps state.batch at the number of the batch."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state

    def on_batch_end(self, batch: Any, logs: Any = None) -> None:
        self.state.batch = batch

    def on_epoch_end(self, epoch: Any, logs: Any = None) -> None:
        self.state.batch = 0


class _UpdateEpochState:
    """Keeps state.epoch at the number of the epoch, counted over all calls of fit in a job."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self.initial_epoch = state.epoch

    def on_train_begin(self, logs: Any = None) -> None:
        self.initial_epoch = self.state.epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.state.epoch = self.initial_epoch + epoch + 1


class _BestModel:
    """A ModelCheckpoint that keeps the best model; the script must set `filepath` before fit."""

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: Any = "epoch",
    ) -> None:
        path = "best.weights.h5" if save_weights_only else "best.keras"
        checkpoint: Any = super()
        checkpoint.__init__(path, monitor, verbose, True, save_weights_only, mode, save_freq)
        self.filepath = None


OF_TRAINING: dict[str, type] = {
    "BroadcastGlobalVariablesCallback": _Broadcast,
    "MetricAverageCallback": _MetricAverage,
    "LearningRateScheduleCallback": _Schedule,
    "LearningRateWarmupCallback": _Warmup,
    "BestModelCheckpoint": _BestModel,
}
OF_ELASTIC: dict[str, type] = {
    "CommitStateCallback": _CommitState,
    "UpdateBatchStateCallback": _UpdateBatchState,
    "UpdateEpochStateCallback": _UpdateEpochState,
}


def make(keras: Any, module: str, kinds: dict[str, type]) -> dict[str, type]:
    """The classes `kinds`, by name, as callbacks of `keras`. `module`: their __module__."""
    callbacks = keras.callbacks
    bases: dict[type, Any] = {_BestModel: callbacks.ModelCheckpoint}
    return {
        name: type(name, (kind, bases.get(kind, callbacks.Callback)), {"__module__": module})
        for name, kind in kinds.items()
    }
