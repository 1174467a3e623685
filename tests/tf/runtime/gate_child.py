"""Trains for a few steps on data that differ by rank.

    gate_child.py [child] [nested]

With `nested`, rank 0 starts two ranks of another job and prints their output. With `child`, between
two steps it forks a process that ends at once and one that trains, and starts one that imports
TensorFlow; it prints their output, including stderr.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from common import compiles, encode, place, result
from tensorflow.mpi._src.variables.large_variables import EagerVariable

v1 = tf.compat.v1
RANK, SIZE = place()
CHILD = """
import tensorflow as tf
libraries = [line for line in open("/proc/self/maps") if "libmpi" in line or "tfmpi" in line]
print(tf.mpi.is_enabled(), tf.mpi.rank(), tf.mpi.size(), len(libraries))
"""

NESTED = """
import tensorflow as tf
print(tf.mpi.is_enabled(), tf.mpi.rank(), tf.mpi.allreduce(float(tf.mpi.rank()), "sum"))
"""


def forked() -> int:
    """The exit status of a child that ends like a Python script."""
    pid = os.fork()
    if pid == 0:
        sys.exit(3)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def trains_forked(step: Any) -> dict[str, Any]:
    """The results of a forked child that trains with kernels of its parent and with its own."""
    there, here = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            said = in_child(step)
        except BaseException as error:
            said = {"error": repr(error)}
        os.write(here, json.dumps(said).encode())
        os._exit(0)
    os.close(here)
    with open(there, "rb") as pipe:
        said = json.loads(pipe.read())
    return said | {"status": os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}


COMPILED = tf.Variable(np.zeros(4, np.float32), name="compiled")


def compiled() -> None:
    """Compiled before the fork: in a child XLA compiles nothing, as in stock TensorFlow.

    Before 2.21 XLA waits for a thread that does not exist in a child, and so would a plain
    function.
    """
    tf.raw_ops.ResourceApplyGradientDescent(
        var=COMPILED.handle, alpha=1.0, delta=tf.fill([4], np.float32(RANK + 1))
    )


if compiles(since=(2, 21)):
    compiled = tf.function(compiled, jit_compile=True)


def in_child(step: Any) -> dict[str, Any]:
    shared = step()
    compiled()
    own = tf.Variable(np.zeros(3), name="own")
    tf.raw_ops.ResourceApplyGradientDescent(var=own.handle, alpha=np.float64(1), delta=np.ones(3))
    said = {"shared": shared, "own": encode(own.numpy()), "compiled": encode(COMPILED.numpy())}
    said["on"] = [tf.mpi.is_enabled(), tf.mpi.rank(), tf.mpi.size()]
    for name, collective in {
        "barrier": tf.mpi.barrier,
        "allreduce": lambda: tf.mpi.allreduce(1.0),
        "allgather": lambda: tf.mpi.allgather(tf.ones([2])),
        "gather_batch": lambda: tf.mpi.gather_batch(tf.ones([2])),
        "op": lambda: EagerVariable(own.handle).broadcast_from_rank_0("own"),
    }.items():
        try:
            collective()
        except (RuntimeError, tf.errors.FailedPreconditionError) as error:
            said[name] = str(error)
    return said


def main() -> None:
    variable = tf.Variable(np.zeros(4), name="v")
    optimizer = v1.train.GradientDescentOptimizer(1.0)
    printed = {"rank": RANK, "size": SIZE}

    def step() -> None:
        optimizer.apply_gradients([(tf.fill([4], np.float64(RANK + 1)), variable)])

    def stepped() -> Any:
        step()
        return encode(variable.numpy())

    step()
    if "child" in sys.argv:
        compiled()
        printed["forked"] = forked()
        printed["trains"] = trains_forked(stepped)
        child = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True)
        printed |= {"child": child.stdout.split(), "child_stderr": child.stderr}
    if "nested" in sys.argv and RANK == 0:
        beside = Path(sys.executable).parent / "mpirun"
        mpirun = str(beside) if beside.exists() else "mpirun"
        command = [mpirun, "-np", "2", "--oversubscribe", sys.executable, "-c", NESTED]
        nested = subprocess.run(command, capture_output=True, text=True)
        printed["nested"] = sorted(nested.stdout.splitlines())
    step()
    result(printed | {"variable": encode(variable.numpy())})


main()
