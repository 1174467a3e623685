"""The cost of the divergence check (TF_MPI_CHECK) relative to the steps, with 100 MB of weights.

    mpirun -np 2 --bind-to core python -m benchmarks.workloads.check_cost

A training loop that times the calls of the check, in CPU time of the thread and in wall-clock time,
which includes waiting for other ranks and for a core.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.mpi._src.variables import initial_broadcast, replica_check

_spent = {"thread": 0.0, "clock": 0.0, "checks": 0.0}


def timed(check: Any) -> Any:
    def run(*arguments: Any) -> None:
        thread, clock = time.thread_time(), time.perf_counter()
        check(*arguments)
        _spent["thread"] += time.thread_time() - thread
        _spent["clock"] += time.perf_counter() - clock
        _spent["checks"] += 1

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--steps", type=int, default=1000)
    options = parser.parse_args()
    columns = options.megabytes * 2**20 // 4 // 8 // 16
    weights = [tf.Variable(tf.ones([16, columns]), name=f"w{number}") for number in range(8)]
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(1e-3)

    @tf.function
    def step(x: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_mean(tf.square(x @ w)) for w in weights])
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))

    rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", 0))
    x = tf.constant(np.random.default_rng(rank).normal(size=(4, 16)).astype(np.float32))
    for _ in range(250):  # the first two checks hash more, or less, than their share
        step(x)
    replica_check.before_step = timed(replica_check.before_step)
    assert initial_broadcast.replica_check is replica_check  # so it calls the timed function
    cpu_begin, begin = time.process_time(), time.perf_counter()
    for _ in range(options.steps):
        step(x)
    cpu, elapsed = time.process_time() - cpu_begin, time.perf_counter() - begin
    assert _spent["checks"] >= options.steps, "every step calls the check"
    print(
        f"rank {rank}: {options.steps} steps in {elapsed:.1f} s; in the check "
        f"{100 * _spent['clock'] / elapsed:.2f} % of wall-clock time, "
        f"{100 * _spent['thread'] / cpu:.2f} % of CPU time"
    )


if __name__ == "__main__":
    main()
