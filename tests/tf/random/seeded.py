"""Draws of a script that seeded before `import tensorflow`, or not at all; and in children."""

import multiprocessing
import random

import numpy as np

random.seed(5)
np.random.seed(6)
before = [random.random(), np.random.rand()]

import tensorflow as tf  # noqa: E402
from common import result  # noqa: E402


def drawn_in_child(_):
    random.seed(None)
    np.random.seed(None)
    return [random.random(), np.random.rand()]


if __name__ == "__main__":
    after = [random.random(), np.random.rand()]
    with multiprocessing.get_context("fork").Pool(2) as pool:
        children = pool.map(drawn_in_child, range(2), chunksize=1)
    result({"before": before, "after": after, "children": children, "size": tf.mpi.size()})
