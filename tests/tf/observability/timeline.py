"""Trains an MLP of 784-2048-2048-10 in a tf.function with two threads; then a small model.

    timeline.py STEPS [late FILE | fail]

`late`: rank 1 sleeps before each step; then all ranks read FILE in two pipelines. `fail`: the last
rank raises an exception after its steps. The small model's gradients are submitted together.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
import tensorflow as tf
from common import result, single_threaded_ops

STEPS, MODE = int(sys.argv[1]), "".join(sys.argv[2:3])
LATE_SECONDS = 0.05
SMALL_VARIABLES = 8
BATCH = 512  # so that computing the first layer's gradient takes longer than sending the second's
RANK, SIZE = tf.mpi.rank(), tf.mpi.size()

single_threaded_ops(inter_op=2)
random = np.random.default_rng(RANK)
sizes = [784, 2048, 2048, 10]
variables = []
for layer, (rows, columns) in enumerate(zip(sizes, sizes[1:])):
    weights = random.normal(size=(rows, columns), scale=rows**-0.5).astype(np.float32)
    variables += [
        tf.Variable(weights, name=f"w{layer}"),
        tf.Variable(tf.zeros(columns), name=f"b{layer}"),
    ]
small = [tf.Variable(tf.zeros(100), name=f"small{i}") for i in range(SMALL_VARIABLES)]
optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.01)


@tf.function
def step(x: Any, y: Any) -> Any:
    with tf.GradientTape() as tape:
        for i in range(0, 6, 2):
            x = tf.matmul(x, variables[i]) + variables[i + 1]
            x = tf.tanh(x) if i < 4 else x
        loss = tf.reduce_mean(tf.square(x - y))
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
    return loss


@tf.function
def small_step() -> None:
    gradients = [tf.fill([100], float(RANK + i)) for i in range(SMALL_VARIABLES)]
    averages = optimizer.compute_gradients(
        lambda: tf.add_n([tf.reduce_sum(v * g) for v, g in zip(small, gradients)]), small
    )
    optimizer.apply_gradients(averages)


for _ in range(STEPS):
    if RANK == 1 and MODE == "late":
        time.sleep(LATE_SECONDS)
    step(
        tf.constant(random.normal(size=(BATCH, 784)).astype(np.float32)),
        tf.constant(random.normal(size=(BATCH, 10)).astype(np.float32)),
    )
for _ in range(STEPS):
    small_step()


def waits(batches: Any) -> float:
    """How long a slow loop waited for these batches."""
    waited, iterator = 0.0, iter(batches)
    while True:
        begin = time.monotonic()
        if next(iterator, None) is None:
            return waited
        waited += time.monotonic() - begin
        time.sleep(LATE_SECONDS)


waited = 0.0
if MODE == "late":
    read = tf.data.Dataset.from_tensor_slices([sys.argv[3]] * 64).map(tf.io.read_file)
    waited = waits(tf.mpi.shard(read.batch(8)))
    waited += waits(tf.mpi.shard(read.filter(lambda _: True).batch(16)))
result(
    {
        "waited": waited,
        "bytes": sum(4 * variable.shape.num_elements() for variable in variables + small),
    }
)
if MODE == "fail" and RANK == SIZE - 1:
    raise ValueError("the data is gone")
