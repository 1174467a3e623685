"""Keras 3: compile and fit on arrays."""

from __future__ import annotations

import time

import keras
import numpy as np
import tensorflow as tf

from benchmarks.workloads import clock, peers
from benchmarks.workloads.models import BATCHES, LEARNING_RATE, WORKLOADS


class Stopwatch(keras.callbacks.Callback):
    """Records the seconds of each batch, excluding the time between turns."""

    def __init__(self, turns: clock.Turns, lockstep: clock.Lockstep) -> None:
        super().__init__()
        self._turns = turns
        self._lockstep = lockstep
        self.batches_per_turn = 0  # 0: no turns

    def on_train_begin(self, logs: dict | None = None) -> None:
        self.times: list[float] = []
        self._begin = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        self._lockstep.step_ended()
        now = time.perf_counter()
        self.times.append(now - self._begin)
        if self.batches_per_turn and len(self.times) % self.batches_per_turn == 0:
            self._turns.pass_on()
            now = time.perf_counter()
        self._begin = now


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
    ranks = options.size if options.whole else 1  # the number of ranks whose samples fit receives
    rank = 0 if options.whole else options.rank
    inputs, labels = workload.data(rank, BATCHES * workload.batch, options.rows)
    turns = clock.Turns(options)
    stopwatch = Stopwatch(turns, clock.Lockstep(options))

    def fit(steps: int) -> list[float]:
        """Trains that many batches; returns the seconds of each."""
        places = np.arange(ranks * steps * workload.batch) % len(labels)
        model.fit(
            inputs[places],
            labels[places],
            batch_size=workload.batch,
            callbacks=[stopwatch, *peer.callbacks()],
            verbose=0,
        )
        return stopwatch.times

    turns.wait()
    probe = fit(clock.WARM_UP + clock.PROBE)[-clock.PROBE :]
    per_turn = clock.SETTLE + clock.meet(options, sum(probe) / len(probe))
    stopwatch.batches_per_turn = per_turn
    turns.pass_on()
    times = fit(turns.count * per_turn)
    timed = [
        times[begin + clock.SETTLE : begin + per_turn] for begin in range(0, len(times), per_turn)
    ]
    clock.report(options, timed, clock.digest(model.trainable_variables[-1].numpy()))


if __name__ == "__main__":
    main()
