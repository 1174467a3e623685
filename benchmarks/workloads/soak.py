"""Trains in small steps for a given time, and records the process's memory, threads and files.

Otherwise an ordinary script. Writes one line of JSON every `--every` seconds.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

BATCH = 16
ROWS = 512  # rows of the embedding


_MALLINFO2_FIELDS = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"


class _Mallinfo2(ctypes.Structure):
    """glibc's struct mallinfo2."""

    _fields_ = [(name, ctypes.c_size_t) for name in _MALLINFO2_FIELDS.split()]


def heap() -> int:
    """Bytes that malloc has allocated and that have not been freed."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = _Mallinfo2
    found = mallinfo2()
    return int(found.uordblks + found.hblkhd)


class Recorder:
    """Counts steps, sleeps after each, and writes a record whenever one is due."""

    def __init__(self, path: Path, seconds: float, every: float, rest: float) -> None:
        self._path, self._every, self._rest = path, every, rest
        self._steps = 0
        self._begin = self._next = time.monotonic()
        self.end = self._begin + seconds

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.end

    def step(self) -> None:
        self._steps += 1
        time.sleep(self._rest)
        if time.monotonic() >= self._next:
            self._next += self._every
            self._write()

    def _write(self) -> None:
        status = dict(
            line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines()
        )
        record = {
            "seconds": round(time.monotonic() - self._begin, 1),
            "steps": self._steps,
            "resident": int(status["VmRSS"].split()[0]) * 1024,
            "private": int(status["RssAnon"].split()[0]) * 1024,
            "heap": heap(),
            "threads": int(status["Threads"]),
            "files": len(os.listdir("/proc/self/fd")) - 1,  # without this listing's own
        }
        with self._path.open("a") as file:
            print(json.dumps(record), file=file)


def build() -> keras.Model:
    keras.utils.set_random_seed(1)
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input((8,), dtype="int32"),
            layers.Embedding(ROWS, 16),
            layers.Flatten(),
            layers.Dense(32, "relu"),
            layers.Dense(1),
        ]
    )


def samples(steps: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(seed).integers(0, ROWS, (steps * BATCH, 8), np.int32)
    return x, np.sin(x.sum(axis=1, keepdims=True)).astype(np.float32)


def loop(recorder: Recorder, steps: int) -> None:
    """A tf.function, and eager code every tenth step. Ranks run equally many steps, not seconds."""
    model, optimizer = build(), keras.optimizers.Adam(1e-4)
    optimizer.build(model.trainable_variables)

    def plain(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss

    compiled = tf.function(plain)
    rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
    x, y = (tf.split(part, 64) for part in samples(64, seed=rank))
    for number in range(steps):
        step = plain if number % 10 == 9 else compiled
        step(x[number % 64], y[number % 64])
        recorder.step()


def fit(recorder: Recorder, epochs: int, folder: Path) -> None:
    """Epochs of 100 steps, each with validation and a checkpoint; the same number on all ranks."""

    class Rest(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: object = None) -> None:
            recorder.step()

    model = build()
    model.compile("adam", "mse", metrics=["mae"])
    checkpoint = keras.callbacks.ModelCheckpoint(
        folder / "model.weights.h5", save_weights_only=True
    )
    model.fit(
        *samples(100),
        batch_size=BATCH,
        epochs=epochs,
        verbose=0,
        validation_data=samples(20, seed=1),
        callbacks=[Rest(), checkpoint],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=("loop", "fit"), required=True)
    parser.add_argument("--seconds", type=float, required=True, help="approximate length")
    parser.add_argument("--every", type=float, required=True, help="seconds between records")
    parser.add_argument("--rest", type=float, required=True, help="seconds after each step")
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args()
    rank = os.environ["OMPI_COMM_WORLD_RANK"]
    path = options.folder / f"{rank}.jsonl"
    recorder = Recorder(path, options.seconds, options.every, options.rest)
    steps = max(1, int(options.seconds / options.rest))
    if options.kind == "loop":
        loop(recorder, steps)
    else:
        files = options.folder / f"files{rank}"
        files.mkdir()
        fit(recorder, max(1, steps // 100), files)


if __name__ == "__main__":
    main()
