"""Restores that differ by rank, and a training that resumes from a backup.

    files_restore.py keras|tf_keras DIR

Prints the weights after each, the number of epochs trained, and the remaining backups.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from common import encode, result

keras: Any = importlib.import_module(sys.argv[1])
DIRECTORY = Path(sys.argv[2])
RANK = tf.mpi.rank()
x = np.random.default_rng(0).normal(size=(32, 4)).astype("f")
y = x.sum(1, keepdims=True)
printed: dict[str, Any] = {}


class Interrupt(keras.callbacks.Callback):
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch == 1:
            raise InterruptedError


def make() -> Any:
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3)])
    model.compile(keras.optimizers.Adam(0.1), "mse")
    return model


def weights(model: Any) -> list[Any]:
    return [encode(value) for value in model.get_weights()]


def different_weights() -> None:
    """Each rank loads something else between two fits; rank 0's values are used."""
    model = make()
    for number in range(2):
        model.fit(x, y, verbose=0)
        model.save_weights(DIRECTORY / f"{number}.weights.h5")
        printed[f"saved {number}"] = weights(model)
    model.load_weights(DIRECTORY / f"{RANK}.weights.h5")
    printed["loaded"] = weights(model)
    model.compile(keras.optimizers.SGD(0.0), "mse")
    model.fit(x, y, verbose=0)
    printed["after fit"] = weights(model)


def different_checkpoints() -> None:
    """The same in a custom loop."""
    value = tf.Variable([1.0, 2.0])
    checkpoint = tf.train.Checkpoint(value=value)
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.0)
    for number in range(2):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(value * value)
        optimizer.apply_gradients([(tape.gradient(loss, value), value)])
        value.assign_add([1.0, 1.0])
        checkpoint.write(DIRECTORY / f"checkpoint {number}")
    checkpoint.read(str(DIRECTORY / f"checkpoint {RANK}"))
    printed["read"] = value.numpy().tolist()
    with tf.GradientTape():
        printed["in the tape"] = value.numpy().tolist()


def backup() -> None:
    """Interrupted after two of four epochs; afterwards only rank 0 sees the backup."""

    def fit(name: str, *more: Any) -> Any:
        saver = keras.callbacks.BackupAndRestore(DIRECTORY / name)
        return model.fit(x, y, epochs=4, verbose=0, callbacks=[saver, *more])

    model = make()
    try:
        fit("backup", Interrupt())
    except InterruptedError:
        printed["interrupted"] = weights(model)
    printed["backups"] = len(list((DIRECTORY / "backup").rglob("*")))
    model = make()
    history = fit("backup" if RANK == 0 else "no backup")
    printed["epochs"] = history.epoch
    printed["after"] = weights(model)
    printed["left"] = [str(p) for p in (DIRECTORY / "backup").rglob("*")]


different_weights()
different_checkpoints()
backup()
result(printed)
