"""Custom loops in which ranks are killed and the remaining ones continue.

argv: how a step runs (eager, function, compiled), then RANK:STEP for each death; the rank is the
launcher's number. With "apart" at the end, each remaining rank then trains a variable of its own.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import sys
import threading
import time

import numpy as np
import tensorflow as tf
from common import compiles, result

STEPS, SAMPLES, WIDTH = 60, 48, 8
PERSON = int(os.environ["OMPI_COMM_WORLD_RANK"])


def die_soon() -> None:
    """Kills this rank at some moment of the next step or of those that follow."""
    wait = random.Random(f"{sys.argv} {PERSON}").uniform(0, 0.02)

    def die() -> None:
        time.sleep(wait)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=die, daemon=True).start()


def batch(step: int) -> tuple[np.ndarray, np.ndarray]:
    drawn = np.random.default_rng(step).normal(size=(SAMPLES, WIDTH)).astype(np.float32)
    return drawn, (drawn @ np.arange(WIDTH, dtype=np.float32))[:, None]


def loss(kernel: tf.Variable) -> float:
    x, y = batch(STEPS)
    return float(np.mean((x @ kernel.numpy() - y) ** 2))


def main() -> None:
    fates = {
        int(rank): int(step)
        for rank, step in (fate.split(":") for fate in sys.argv[2:] if fate != "apart")
    }
    kernel = tf.Variable(tf.random.stateless_normal([WIDTH, 1], [1, PERSON]), name="kernel")
    table = tf.Variable(tf.zeros([16, WIDTH]), name="table")
    optimizer = tf.keras.optimizers.Adam(0.1)
    optimizer.build([kernel, table])

    def step_function(x: tf.Tensor, y: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            error = tf.matmul(x + tf.gather(table, rows), kernel) - y
            loss = tf.reduce_mean(tf.square(error))
        gradients = tape.gradient(loss, [kernel, table])
        optimizer.apply_gradients(zip(gradients, [kernel, table]))
        return loss

    if sys.argv[1] != "eager":
        step_function = tf.function(
            step_function,
            jit_compile=sys.argv[1] == "compiled" and compiles(),
            reduce_retracing=True,
        )
    sizes, curve = [], []
    for step in range(STEPS):
        if fates.get(PERSON) == step:
            die_soon()
        rank, size = tf.mpi.rank(), tf.mpi.size()
        sizes.append(size)
        x, y = (array[rank::size] for array in batch(step))
        if step % 10 == 0:
            curve.append(round(loss(kernel), 2))
        step_function(tf.constant(x), tf.constant(y), tf.constant(np.arange(len(x)) % 16))
    if sys.argv[-1] == "apart":
        own = tf.Variable(tf.zeros([4]), name=f"own_{tf.mpi.rank()}")
        tf.compat.v1.train.GradientDescentOptimizer(0.1).apply_gradients([(tf.ones([4]), own)])
    total = tf.mpi.allreduce(np.ones(1, np.int64), "sum")
    folder = os.environ["TEST_FOLDER"]
    saved = tf.train.Checkpoint(kernel=kernel).save(os.path.join(folder, "end"))
    values = [v.numpy() for v in [kernel, table, *optimizer.variables]]
    digest = hashlib.sha256(b"".join(value.tobytes() for value in values)).hexdigest()
    result(
        {
            "rank": tf.mpi.rank(),
            "size": tf.mpi.size(),
            "total": int(total[0]),
            "sizes": sizes,
            "digest": digest,
            "loss": loss(kernel),
            "curve": curve,
            "saved": os.path.exists(saved + ".index"),
        }
    )


main()
