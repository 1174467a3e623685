"""Flips bits at random places of one rank's variables: how many are found, and how soon.

    TF_MPI_CHECK=100 mpirun -np 3 python flips.py FLIPS MEGABYTES

After each flip the ranks are made equal again. `late`: not found within TF_MPI_CHECK steps.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from common import result
from tensorflow.mpi._src.variables import large_variables

RANK, SIZE = tf.mpi.rank(), tf.mpi.size()
FLIPS, MEGABYTES = int(sys.argv[1]), int(sys.argv[2])
EVERY = int(os.environ["TF_MPI_CHECK"])


def main() -> None:
    columns = MEGABYTES * 2**20 // 4 // 8 // 16
    weights = [tf.Variable(tf.ones([16, columns]), name=f"w{number}") for number in range(8)]
    optimizer = keras.optimizers.SGD(1e-3)
    optimizer.build(weights)

    @tf.function
    def step(x: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_mean(tf.square(x @ w)) for w in weights])
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))

    x = np.random.default_rng(RANK).normal(size=(4, 16)).astype(np.float32)
    chance = np.random.default_rng(5)  # the same on every rank
    found = right = late = 0
    for _ in range(2 * EVERY):
        step(tf.constant(x))
    for _ in range(FLIPS):
        odd = int(chance.integers(SIZE))
        place, element = int(chance.integers(8)), int(chance.integers(16 * columns))
        bit, wait = int(chance.integers(23)), int(chance.integers(EVERY))
        for _ in range(wait):
            step(tf.constant(x))
        if odd == RANK:
            array = large_variables.view(weights[place].handle)
            word = ctypes.c_uint32.from_address(array.ctypes.data + 4 * element)
            word.value ^= 1 << bit
            del array
        for number in range(2 * EVERY):
            try:
                step(tf.constant(x))
            except RuntimeError as error:
                found += 1
                late += number > EVERY
                who = re.match(r"rank (\d+)/.*'w(\d)", str(error))
                right += who is not None and (int(who[1]), int(who[2])) == (odd, place)
                break
        tf.mpi.broadcast_variables(weights)
    result({"flips": FLIPS, "found": found, "right": right, "late": late})


if __name__ == "__main__":
    main()
