"""File calls of the script itself, of which the second rank's fails.

files_calls.py create|remove|hdf5|gone DIR
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import h5py
import tensorflow as tf

CASE, DIRECTORY = sys.argv[1], Path(sys.argv[2])
RANK = int(os.environ["OMPI_COMM_WORLD_RANK"])
value = tf.Variable(1.0)
if CASE == "remove":
    tf.train.Checkpoint(value=value).write(DIRECTORY / "checkpoint")
time.sleep(RANK)
if CASE == "create":
    os.close(os.open(DIRECTORY / "run", os.O_CREAT | os.O_EXCL))
elif CASE == "remove":
    (DIRECTORY / "checkpoint.index").stat()
    os.remove(DIRECTORY / "checkpoint.index")
elif CASE == "hdf5":
    with h5py.File(DIRECTORY / "results.h5", "a"):
        time.sleep(3)
elif CASE == "gone" and RANK == 1:  # rank 0 waits for a rank that saves alone
    tf.train.Checkpoint(value=value).write(DIRECTORY / "alone")
optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.1)
with tf.GradientTape() as tape:
    loss = value * value
optimizer.apply_gradients([(tape.gradient(loss, value), value)])
