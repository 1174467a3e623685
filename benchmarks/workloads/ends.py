"""Trains for some seconds and writes the duration of the end; otherwise an ordinary script.

The end is the time from the end of the last epoch, or the last step, to the line after `fit`, or
after the loop.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

BATCH = 32
REST = 0.1  # seconds of sleep per step: makes a run's length predictable and needs little CPU


def build() -> keras.Model:
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Input((8,)), keras.layers.Dense(8), keras.layers.Dense(1)]
    return keras.Sequential(layers)


def samples(steps: int) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).standard_normal((steps * BATCH, 8), np.float32)
    return x, x.sum(axis=1, keepdims=True)


class Clock(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        time.sleep(REST)

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        self.ended = time.monotonic()


def fit(steps: int) -> tuple[float, float]:
    """The times at which the end begins and ends."""
    model, clock = build(), Clock()
    model.compile("sgd", "mse")
    model.fit(*samples(steps), batch_size=BATCH, verbose=0, callbacks=[clock])
    return clock.ended, time.monotonic()


def loop(steps: int) -> tuple[float, float]:
    model = build()
    optimizer = keras.optimizers.SGD(0.01)
    model.build((None, 8))
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

    data = tf.data.Dataset.from_tensor_slices(samples(steps)).shuffle(64, seed=1).batch(BATCH)
    for x, y in data.prefetch(tf.data.AUTOTUNE):
        step(x, y)
        time.sleep(REST)
        begin = time.monotonic()
    return begin, time.monotonic()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=("fit", "loop"), required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--times", type=int, required=True, help="number of consecutive runs")
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args()
    found = []
    for _ in range(options.times):
        start = time.monotonic()
        begin, end = {"fit": fit, "loop": loop}[options.kind](round(options.seconds / REST))
        found.append((begin - start, end - begin))
    rank = os.environ["OMPI_COMM_WORLD_RANK"]
    (options.folder / f"{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
