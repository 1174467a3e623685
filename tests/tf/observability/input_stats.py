"""Counts samples made and used in the pipelines that Keras gets, one pipeline after another."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from common import result
from tensorflow.mpi._src.data import input_stats

SAMPLES, ODD = 64, 61


def pairs(x: Any) -> Any:
    row = tf.cast(x, tf.float32)[None]
    return row, row


def noisy(x: Any, y: Any) -> Any:
    return x, y + tf.random.normal([1], seed=3)


class Batches(keras.utils.PyDataset):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return np.ones((8, 1), np.float32), np.ones((8, 1), np.float32)


def counts() -> Any:
    counter = input_stats._counter()
    return tf.raw_ops.ReadVariableOp(resource=counter, dtype=tf.int64).numpy()


model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
samples = tf.data.Dataset.range(SAMPLES).map(pairs)
mixed = samples.batch(8).map(lambda x, y: (x - tf.reduce_mean(x), y))
cases = {
    "maps": lambda: model.evaluate(samples.batch(8), verbose=0),
    "predict": lambda: model.predict(samples.batch(8), verbose=0),
    "odd": lambda: model.fit(samples.take(ODD).batch(15), verbose=0),
    "wall": lambda: model.fit(mixed, verbose=0),
    "arrays": lambda: model.fit(np.ones((SAMPLES, 1)), np.ones((SAMPLES, 1)), verbose=0),
    "sent": lambda: model.fit(samples.map(noisy).batch(8), verbose=0),
    "python": lambda: model.fit(Batches(), verbose=0),
}
found = {}
for name, run in cases.items():
    before = counts()
    run()
    found[name] = (counts() - before)[:2].tolist()
result(found)
