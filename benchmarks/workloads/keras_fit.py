"""Keras 3: compile and fit on arrays."""

from __future__ import annotations

import time

import keras
import numpy as np
import tensorflow as tf

from benchmarks.workloads import clock, peers
from benchmarks.workloads.models import BATCHES, LEARNING_RATE, WORKLOADS


class Stopwatch(keras.callbacks.Callback):
    """When each batch ended, in seconds of time.perf_counter()."""

    def on_train_begin(self, logs: dict | None = None) -> None:
        self.ends: list[float] = []

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        self.ends.append(time.perf_counter())


def main() -> None:
    options = clock.options()
    workload = WORKLOADS[options.workload]
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    peer = peers.start(options)
    keras.utils.set_random_seed(1)
    with peer.scope():
        model = workload.keras(options.rows)
        model.compile(
            optimizer=peer.keras_optimizer(keras.optimizers.SGD(LEARNING_RATE)),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            jit_compile=options.jit,
        )
    ranks = options.size if options.whole else 1  # whose samples fit is given
    rank = 0 if options.whole else options.rank
    inputs, labels = workload.data(rank, BATCHES * workload.batch, options.rows)
    stopwatch = Stopwatch()

    def fit(steps: int) -> list[float]:
        """Trains that many batches; returns the seconds that each but the first took."""
        places = np.arange(ranks * steps * workload.batch) % len(labels)
        model.fit(
            inputs[places],
            labels[places],
            batch_size=workload.batch,
            callbacks=[stopwatch, *peer.callbacks()],
            verbose=0,
        )
        return list(np.diff(stopwatch.ends))

    probe = fit(clock.WARM_UP + clock.PROBE)[-clock.PROBE :]
    steps = clock.meet(options, sum(probe) / len(probe))
    times = fit(steps + clock.SETTLE)[clock.SETTLE - 1 :]
    clock.report(options, times, clock.digest(model.trainable_variables[-1].numpy()))


if __name__ == "__main__":
    main()
