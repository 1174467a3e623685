"""Trains as one process, without using ranks: prints exact losses, and loaded libraries.

Every process has the same data, however it was started; the official wheel runs it too.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from common import result, single_threaded_ops

v1 = tf.compat.v1
STEPS = 30
OURS = ("libmpi.", "libtensorflow_mpi", "libtfmpi", "libopen-", "libpmix")


def batches() -> list[tuple[np.ndarray, np.ndarray]]:
    random = np.random.default_rng(1)
    return [
        (random.normal(size=(16, 8)).astype("f"), random.normal(size=(16, 2)).astype("f"))
        for _ in range(STEPS)
    ]


def loss_of(x: Any, y: Any, kernel: Any, bias: Any) -> Any:
    hidden = tf.nn.dropout(tf.nn.tanh(tf.matmul(x, kernel) + bias), rate=0.1, seed=5)
    return tf.reduce_mean(tf.square(hidden - y))


def in_session() -> list[str]:
    with tf.Graph().as_default(), v1.Session() as session:
        v1.set_random_seed(3)
        x, y = v1.placeholder(tf.float32, [None, 8]), v1.placeholder(tf.float32, [None, 2])
        kernel = v1.get_variable("kernel", [8, 2], use_resource=False)
        loss = loss_of(x, y, kernel, v1.get_variable("bias", [2], use_resource=True))
        train = v1.train.AdamOptimizer(0.05).minimize(loss)
        session.run(v1.global_variables_initializer())
        feeds = ({x: a, y: b} for a, b in batches())
        return [float(session.run([loss, train], feed)[0]).hex() for feed in feeds]


def in_function() -> list[str]:
    tf.random.set_seed(3)
    kernel = tf.Variable(tf.random.normal([8, 2]), name="kernel")
    bias = tf.Variable(tf.zeros([2]), name="bias")
    optimizer = v1.train.MomentumOptimizer(0.05, 0.9)

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(x, y, kernel, bias)
        gradients = tape.gradient(loss, [kernel, bias])
        optimizer.apply_gradients(zip(gradients, [kernel, bias]))
        return loss

    return [float(step(x, y)).hex() for x, y in batches()]


def main() -> None:
    single_threaded_ops()
    curves = {"session": in_session(), "function": in_function()}
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    mpi = getattr(tf, "mpi", None)
    result(
        {
            "curves": curves,
            "libraries": sorted(path for path in mapped if any(name in path for name in OURS)),
            "modules": sorted(name for name in sys.modules if name.startswith("tensorflow.mpi")),
            "place": mpi and [mpi.is_enabled(), mpi.rank(), mpi.size()],
        }
    )


main()
