"""The changes that a script needs for MultiWorkerMirroredStrategy and for Horovod."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Nothing:
    """No changes to the script."""

    def v1_optimizer(self, optimizer: Any) -> Any:
        return optimizer

    def v1_broadcast(self, session: Any) -> None:
        pass

    def keras_optimizer(self, optimizer: Any) -> Any:
        return optimizer

    def callbacks(self) -> list[Any]:
        return []

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def tape(self, tape: Any) -> Any:
        return tape

    def loss(self, loss: Any) -> Any:
        """The loss to differentiate, given the mean over this rank's samples."""
        return loss

    def run(self, step: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        return step(*arguments)

    def local(self, variable: Any) -> Any:
        """This process's copy of the variable."""
        return variable

    def checkpoint_path(self, path: Path, rank: int) -> Path | None:
        """Where this rank saves what the script saves to `path`; None if it does not save."""
        return path


class MultiWorkerMirrored(Nothing):
    """Takes its workers from $TF_CONFIG."""

    def __init__(self) -> None:
        import tensorflow as tf

        self.strategy = tf.distribute.MultiWorkerMirroredStrategy()

    def v1_optimizer(self, optimizer: Any) -> Any:
        raise NotImplementedError("MultiWorkerMirroredStrategy does not support Session loops")

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        return self.strategy.scope()

    def loss(self, loss: Any) -> Any:
        return loss / self.strategy.num_replicas_in_sync  # its gradients are summed over the ranks

    def run(self, step: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        return self.strategy.run(step, args=arguments)

    def local(self, variable: Any) -> Any:
        return self.strategy.experimental_local_results(variable)[0]

    def checkpoint_path(self, path: Path, rank: int) -> Path | None:
        return path if rank == 0 else path.with_name(f"{path.name}.worker{rank}")


class Horovod(Nothing):
    """As in Horovod's documentation: wraps the optimizer or the tape, broadcasts from rank 0."""

    def __init__(self) -> None:
        import horovod.tensorflow as hvd

        hvd.init()
        self.hvd = hvd

    def v1_optimizer(self, optimizer: Any) -> Any:
        return self.hvd.DistributedOptimizer(optimizer)

    def v1_broadcast(self, session: Any) -> None:
        session.run(self.hvd.broadcast_global_variables(0))

    def keras_optimizer(self, optimizer: Any) -> Any:
        import horovod.tensorflow.keras as hvd_keras

        return hvd_keras.DistributedOptimizer(optimizer)

    def callbacks(self) -> list[Any]:
        import horovod.tensorflow.keras as hvd_keras

        return [hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0)]

    def tape(self, tape: Any) -> Any:
        return self.hvd.DistributedGradientTape(tape)

    def checkpoint_path(self, path: Path, rank: int) -> Path | None:
        return path if rank == 0 else None


def start(options: Any) -> Nothing:
    """The peer named by options.peer.

    Must be called before any tensor is created, as MultiWorkerMirroredStrategy requires.
    """
    if options.peer == "mwms":
        assert "TF_CONFIG" in os.environ
        return MultiWorkerMirrored()
    return Horovod() if options.peer == "horovod" else Nothing()
