"""A job of storm.py: a small training with every phase, in which one rank fails.

storm_script.py PHASE RANK COUNT WAY: that rank does WAY when it is in PHASE for the COUNT-th time,
after printing AT and the time.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import sys
import threading
import time
from typing import Any

PHASE, WHO, COUNT, WAY = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
RANK = int(os.environ["OMPI_COMM_WORLD_RANK"])
_times = 0


def fail() -> None:
    print("AT", time.time(), flush=True)
    if WAY == "raise":
        raise RuntimeError(f"rank {RANK} is broken in {PHASE}")
    if WAY == "exit":
        sys.exit(3)
    if WAY == "vanish":  # silently, as if it had succeeded
        ctypes.CDLL(None)._exit(0)
    if WAY == "leave":
        os._exit(3)
    os.kill(os.getpid(), signal.Signals[WAY])
    time.sleep(30)  # Python handles a signal at the next line that it runs


def phase(name: str) -> None:
    global _times
    if name != PHASE or RANK != WHO:
        return
    _times += 1
    if _times == COUNT:
        fail()


def during_import() -> None:
    time.sleep(0.3 * COUNT)
    fail()


if PHASE == "import" and RANK == WHO:
    threading.Thread(target=during_import, daemon=True).start()

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

atexit.register(phase, "exit")
phase("start")


def seen(name: str) -> Any:
    """An op that enters this phase each time it runs."""

    def run() -> np.float32:
        phase(name)
        return np.float32(0)

    return tf.py_function(run, [], tf.float32)


class Model(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(3)

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.control_dependencies([seen("train_step")]):
            x = tf.identity(x)
        return super().train_step((x, y))


class Calls(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        phase("callback")
        if self.params["epochs"] == 2 and batch == self.params["steps"] - 1:
            phase("last step")


def rows() -> Any:
    random = np.random.default_rng(0)
    for _ in range(32):
        phase("generator")
        yield random.random(4, np.float32), random.random(3, np.float32)


def mapped(x: Any, y: Any) -> Any:
    extra = seen("map function")
    extra.set_shape([])
    return x + extra, y


signature = (tf.TensorSpec([4], tf.float32), tf.TensorSpec([3], tf.float32))
data = tf.data.Dataset.from_generator(rows, output_signature=signature).map(mapped).batch(8)
data = data.apply(tf.data.experimental.assert_cardinality(4))
model = Model()
model.compile("sgd", "mse")
model.fit(data, epochs=2, verbose=0, callbacks=[Calls()])
phase("evaluate")
model.evaluate(data, verbose=0)
phase("predict")
model.predict(np.ones([8, 4], np.float32), verbose=0)
phase("save")
model.save_weights(os.path.join(os.environ["STORM_DIRECTORY"], "model.weights.h5"))
