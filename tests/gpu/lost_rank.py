"""Kills rank 1 while gradients on GPUs are averaged: `mpirun -np 2 python lost_rank.py`.

The other ranks must end; report.py measures the time from the line that this script prints.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import tensorflow as tf
from tensorflow import mpi
from tensorflow.mpi._src.average import averaging

with tf.device("GPU:0"):
    tensor = tf.fill([1_000_000], 1.0)


@tf.function
def step(tensor: Any) -> Any:
    with tf.device("GPU:0"):
        return averaging.average([tensor], ["t"], "lost rank")[0]


for number in range(1_000_000):
    average = step(tensor)
    if number == 200 and mpi.rank() == 1:
        print(f"killed at {time.time()}", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    float(average[0])
