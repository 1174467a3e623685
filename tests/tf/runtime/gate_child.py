"""Trains a little on data that differ by rank.

    gate_child.py [child]

With `child`, between two steps it forks a process that ends at once, and starts one that imports
TensorFlow; what that one says, and on stderr, is printed too.
"""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import tensorflow as tf
from common import encode, place, result

v1 = tf.compat.v1
RANK, SIZE = place()
CHILD = """
import tensorflow as tf
libraries = [line for line in open("/proc/self/maps") if "libmpi" in line or "tfmpi" in line]
print(tf.mpi.is_enabled(), tf.mpi.rank(), tf.mpi.size(), len(libraries))
"""


def forked() -> int:
    """The exit status of a child that ends as Python scripts do."""
    pid = os.fork()
    if pid == 0:
        sys.exit(3)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main() -> None:
    variable = tf.Variable(np.zeros(4), name="v")
    optimizer = v1.train.GradientDescentOptimizer(1.0)
    printed = {"rank": RANK, "size": SIZE}

    def step() -> None:
        optimizer.apply_gradients([(tf.fill([4], np.float64(RANK + 1)), variable)])

    step()
    if "child" in sys.argv:
        printed["forked"] = forked()
        child = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True)
        printed |= {"child": child.stdout.split(), "child_stderr": child.stderr}
    step()
    result(printed | {"variable": encode(variable.numpy())})


main()
