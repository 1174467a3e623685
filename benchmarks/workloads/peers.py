"""What a script must change for MultiWorkerMirroredStrategy and for Horovod; else nothing."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

from benchmarks.workloads.clock import Options


class Nothing:
    """The script as it is."""

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

    def run(self, step: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        return step(*arguments)

    def local(self, variable: Any) -> Any:
        return variable


class MultiWorkerMirrored(Nothing):
    """The workers are those of $TF_CONFIG."""

    def __init__(self) -> None:
        import tensorflow as tf

        self.strategy = tf.distribute.MultiWorkerMirroredStrategy()

    def v1_optimizer(self, optimizer: Any) -> Any:
        raise NotImplementedError("MultiWorkerMirroredStrategy has no Session loop")

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        return self.strategy.scope()

    def run(self, step: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        return self.strategy.run(step, args=arguments)

    def local(self, variable: Any) -> Any:
        return self.strategy.experimental_local_results(variable)[0]


class Horovod(Nothing):
    """As its documentation has it: wrap the optimizer or the tape, broadcast from rank 0."""

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


def start(options: Options) -> Nothing:
    """Called before TensorFlow makes any tensor, as MultiWorkerMirroredStrategy demands."""
    if options.peer == "mwms":
        assert "TF_CONFIG" in os.environ
        return MultiWorkerMirrored()
    return Horovod() if options.peer == "horovod" else Nothing()
