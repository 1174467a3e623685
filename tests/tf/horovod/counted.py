"""Gradients that differ by rank, and how often they are averaged. Starts hvd."""

from __future__ import annotations

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from tensorflow.mpi._src.runtime import c_api

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
MEAN = float(np.mean(np.arange(SIZE) + 1))  # of RANK + 1


def averages() -> int:
    """Of gradients, so far."""
    return c_api.stats()["gradients"] if SIZE > 1 else 0


class Counted:
    """`times` averages of gradients are made inside; none on one rank."""

    def __init__(self, times: int) -> None:
        self.times = times if SIZE > 1 else 0

    def __enter__(self) -> None:
        self.before = averages()

    def __exit__(self, *error) -> None:
        if error[0] is None:
            made = averages() - self.before
            assert made == self.times, f"{made} averages, not {self.times}"


def losses(w, b):
    """Whose gradients are RANK + 1 for each element of w, and for the rows 0 and RANK of b."""
    rows = tf.gather(b, [0, RANK])
    return (RANK + 1.0) * (tf.reduce_sum(w) + tf.reduce_sum(rows))


def variables():
    return tf.Variable(tf.zeros([3])), tf.Variable(tf.zeros([8, 2]))


def rows_mean():
    """The average gradient of b: row 0 has that of every rank, and each rank has its row."""
    whole = np.zeros((8, 2))
    for rank in range(SIZE):
        whole[0] += rank + 1
        whole[rank] += rank + 1
    return whole / SIZE
