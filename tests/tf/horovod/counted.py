"""Gradients that differ by rank, and the number of their averages. Initializes hvd."""

from __future__ import annotations

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from tensorflow.mpi._src.runtime import c_api

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
MEAN = float(np.mean(np.arange(SIZE) + 1))  # the mean of RANK + 1


def averages() -> int:
    """The number of gradient averages so far."""
    return c_api.stats()["gradients"] if SIZE > 1 else 0


class Counted:
    """Expects `times` gradient averages inside; none on a single rank."""

    def __init__(self, times: int) -> None:
        self.times = times if SIZE > 1 else 0

    def __enter__(self) -> None:
        self.before = averages()

    def __exit__(self, *error) -> None:
        if error[0] is None:
            made = averages() - self.before
            assert made == self.times, f"{made} averages, not {self.times}"


def losses(w, b):
    """Losses with the gradients RANK + 1 for all of w, and for rows 0 and RANK of b."""
    rows = tf.gather(b, [0, RANK])
    return (RANK + 1.0) * (tf.reduce_sum(w) + tf.reduce_sum(rows))


def variables():
    return tf.Variable(tf.zeros([3])), tf.Variable(tf.zeros([8, 2]))


def rows_mean():
    """b's average gradient: row 0 averages over all ranks, and each rank contributes its own
    row."""
    whole = np.zeros((8, 2))
    for rank in range(SIZE):
        whole[0] += rank + 1
        whole[rank] += rank + 1
    return whole / SIZE
