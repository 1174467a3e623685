"""Results that differ between N ranks and one process: the numbers that docs/semantics.md explains.

One variable, one step of gradient descent with rate 1, from 0. Rank r's gradient is [2r + 1].
"""

from __future__ import annotations

import tensorflow as tf
from common import result

v1 = tf.compat.v1
RANK, SIZE = tf.mpi.rank(), tf.mpi.size()


def summed() -> float:
    """A loss that is a sum, for each rank's part of the two samples of a batch."""
    variable = tf.Variable([0.0])
    optimizer = v1.train.GradientDescentOptimizer(1.0)
    samples = [2.0 * RANK + 1] if SIZE > 1 else [1.0, 3.0]
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum([-s * variable[0] for s in samples])
    optimizer.apply_gradients([(tape.gradient(loss, variable), variable)])
    return float(variable.numpy()[0])


result({"summed": summed()})
