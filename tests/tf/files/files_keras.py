"""Trains with every Keras callback that writes, then saves in every format, into one folder.

    files_keras.py keras|tf_keras DIR

Rank 0 is late for each save. Prints the weights, the state of the callbacks, whether files existed
when the call returned, how often a callback posted to a server, and how many bytes this process
wrote to files and pipes.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf
from common import encode, result
from files_common import there_after, written

KERAS = sys.argv[1]
DIRECTORY = Path(sys.argv[2])
RANK = tf.mpi.rank() if hasattr(tf, "mpi") else 0
keras: Any = importlib.import_module(KERAS)
callbacks: Any = keras.callbacks
there: dict[str, bool] = {}
posts: list[Any] = []  # what RemoteMonitor has sent


class Late(callbacks.Callback):
    """Must be the first callback."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if RANK == 0:
            time.sleep(0.3)


class Best(callbacks.ModelCheckpoint):
    """A custom callback."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        super().on_epoch_end(epoch, logs)
        there[f"best {epoch}"] = (DIRECTORY / "best" / "model.keras").exists()


def train(model: Any) -> list[Any]:
    random = np.random.default_rng(5)
    x = random.normal(size=(64, 4)).astype("f")
    y = x.sum(1, keepdims=True)
    path = str(DIRECTORY)
    best = Best(f"{path}/best/model.keras", monitor="loss", save_best_only=True, verbose=1)
    used = [
        Late(),
        callbacks.ModelCheckpoint(f"{path}/{{epoch:02d}}.keras"),
        callbacks.ModelCheckpoint(f"{path}/{{epoch:02d}}.weights.h5", save_weights_only=True),
        callbacks.ModelCheckpoint(f"{path}/batch.keras", save_freq=3),
        best,
        callbacks.CSVLogger(f"{path}/log.csv", append=True),
        callbacks.TensorBoard(
            f"{path}/board", histogram_freq=1, update_freq=1, profile_batch=(2, 3),
            embeddings_freq=2, write_images=True,
        ),
        callbacks.BackupAndRestore(f"{path}/backup", delete_checkpoint=False),
        callbacks.EarlyStopping(monitor="loss", verbose=1),
        callbacks.ReduceLROnPlateau(monitor="loss", verbose=1),
        callbacks.LearningRateScheduler(lambda epoch, rate: rate, verbose=1),
        callbacks.RemoteMonitor(),
    ]  # fmt: skip
    if KERAS == "keras":  # tf_keras cannot save both
        used.append(callbacks.BackupAndRestore(f"{path}/backup that goes"))
    with mock.patch("requests.post", lambda *_, **sent: posts.append(sent)):
        model.fit(x, y, batch_size=16, epochs=3, callbacks=used, verbose=2, shuffle=False)
    return [encode(np.float64(best.best)), model.name]


def save(model: Any) -> None:
    def saved(file: str, function: Any) -> None:
        there[file] = there_after(DIRECTORY / file, function, late=0.3 if RANK == 0 else 0)

    saved("model.keras", lambda: model.save(DIRECTORY / "model.keras"))
    saved("model.h5", lambda: keras.saving.save_model(model, str(DIRECTORY / "model.h5")))
    saved("w.weights.h5", lambda: model.save_weights(os.path.relpath(DIRECTORY / "w.weights.h5")))
    saved("exported/saved_model.pb", lambda: model.export(str(DIRECTORY / "exported")))
    if KERAS == "tf_keras":
        saved("saved/keras_metadata.pb", lambda: model.save(str(DIRECTORY / "saved")))
        saved("tf/weights.index", lambda: model.save_weights(str(DIRECTORY / "tf" / "weights")))


def main() -> None:
    keras.utils.set_random_seed(1)
    layers = keras.layers
    model = keras.Sequential(
        [layers.Input((4,)), layers.Dense(2000, "relu"), layers.Dense(20), layers.Dense(1)]
    )
    model.compile("sgd", "mse")
    before = written()
    best, name = train(model)
    after = written()
    save(model)
    loaded = keras.models.load_model(DIRECTORY / "model.keras")
    loaded.load_weights(str(DIRECTORY / "w.weights.h5"))
    result(
        {
            "best": best,
            "name": name,
            "there": there,
            "posts": len(posts),
            "written by fit": after - before,
            "written": written() - before,
            "weights": [encode(w) for w in model.get_weights()],
            "loaded": [encode(w) for w in loaded.get_weights()],
        }
    )


main()
