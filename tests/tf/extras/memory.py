"""Allocates and frees 100 MB five times; prints the page faults of the last four times."""

from __future__ import annotations

import resource

import tensorflow as tf
from common import result

BYTES = 100 * 2**20


def faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def step() -> None:
    with tf.device("CPU:0"):
        tf.fill([BYTES // 4], 1.0)  # freed immediately


step()
before = faults()
for _ in range(4):
    step()
result({"faults": faults() - before})
