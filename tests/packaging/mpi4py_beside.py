"""mpi4py_beside.py before|after [single]: mpi4py's sums between averaged steps.

before, after: when mpi4py is imported, relative to TensorFlow. single: MPI for one thread only.
"""

from __future__ import annotations

import hashlib
import sys

import numpy as np

if "single" in sys.argv:
    import mpi4py

    mpi4py.rc.thread_level = "single"
if "before" in sys.argv:
    from mpi4py import MPI

import tensorflow as tf

if "after" in sys.argv:
    from mpi4py import MPI
from common import result

comm = MPI.COMM_WORLD
rank = tf.mpi.rank()
weights = tf.Variable(np.ones((50, 3), np.float32))
optimizer = tf.keras.optimizers.SGD(0.01)
draw = np.random.default_rng(rank)
sums = []
for step in range(20):
    x = tf.constant(draw.standard_normal((4, 50), dtype=np.float32))
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((x @ weights) ** 2)
    optimizer.apply_gradients([(tape.gradient(loss, weights), weights)])
    sums.append(comm.allreduce(float(step * (rank + 1))))
result(
    {
        "ours": [rank, tf.mpi.size()],
        "theirs": [comm.Get_rank(), comm.Get_size()],
        "sums": sums,
        "weights": hashlib.sha256(weights.numpy().tobytes()).hexdigest(),
    }
)
