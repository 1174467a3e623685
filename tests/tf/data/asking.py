"""Runs cases before and after the script asks for its rank; then with different data per rank.

Prints the results of "before" and "after", which must be equal.
"""

from __future__ import annotations

import os
import sys
import uuid
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from common import result

NUMBER = int(os.environ.get("OMPI_COMM_WORLD_RANK", 0))
X = np.random.default_rng(1).normal(size=(24, 3)).astype("f")
Y = X.sum(1, keepdims=True)


def model() -> Any:
    keras.utils.set_random_seed(4)
    layers = [keras.layers.Dense(8), keras.layers.Dropout(0.5), keras.layers.Dense(1)]
    made = keras.Sequential([keras.Input((3,)), *layers])
    made.compile(keras.optimizers.SGD(0.1), "mse")
    return made


def weights(trained: Any) -> list[float]:
    return [float(value) for array in trained.get_weights() for value in array.ravel()]


def loop() -> list[float]:
    """An eager loop that adds random numbers to its samples."""
    trained = model()
    for _ in range(3):
        with tf.GradientTape() as tape:
            noisy = X + tf.random.normal(X.shape)
            loss = tf.reduce_mean((trained(noisy, training=True) - Y) ** 2)
        gradients = tape.gradient(loss, trained.trainable_variables)
        trained.optimizer.apply_gradients(zip(gradients, trained.trainable_variables))
    return weights(trained)


def fit() -> list[float]:
    trained = model()
    data = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(24).batch(8)
    trained.fit(data, epochs=2, verbose=0)
    return weights(trained)


def other_data() -> list[float]:
    """As if drawn without a seed: a different array on each rank."""
    trained = model()
    trained.fit(X + NUMBER, Y, batch_size=8, verbose=0)
    return weights(trained)


def save() -> bool:
    """Saves under a name that each rank draws itself."""
    path = Path(sys.argv[1]) / f"{uuid.uuid4()}.weights.h5"
    model().save_weights(path)
    there = path.exists()
    tf.mpi.barrier()
    return there


def half() -> dict[str, Any]:
    return {case.__name__: case() for case in (loop, fit, other_data, save)}


printed: dict[str, Any] = {"before": half()}
if tf.mpi.rank() == 0 and tf.mpi.size() == 2 and tf.mpi.local_rank() == 0:
    print("rank 0 says so")
printed["after"] = half()

tf.mpi.own_data()
tf.mpi.own_data()
printed["own"] = {"drawn": np.random.default_rng().integers(2**60), "trained": other_data()}
printed["own"]["drawn"] = int(printed["own"]["drawn"])
printed["own"]["predicted"] = model().predict(X + NUMBER, verbose=0).ravel().tolist()
result(printed)
