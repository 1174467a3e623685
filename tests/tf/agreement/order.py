"""Trains many variables whose updates start in an order that differs by rank and step.

    order.py session | function THREADS VARIABLES STEPS [VARIABLES STEPS ...]

THREADS: inter-op threads; for sessions one or more, comma-separated, one per session. Each variable
is pulled to points that differ by rank. Prints a digest of all variables, and their distance from
the result of the mean over the ranks.
"""

from __future__ import annotations

import functools
import hashlib
import sys
import time
from typing import Any

import numpy as np
import tensorflow as tf
from common import result, single_threaded_ops

v1 = tf.compat.v1
RANK, SIZE = tf.mpi.rank(), tf.mpi.size()
LEARNING_RATE = 0.05
MODE, THREADS = sys.argv[1], [int(word) for word in sys.argv[2].split(",")]
STAGES = [(int(v), int(s)) for v, s in zip(sys.argv[3::2], sys.argv[4::2])]


def shape(index: int) -> tuple[int, ...]:
    return (index % 7 + 1, 2) if index % 3 else (50,)


def initial(index: int, rank: int) -> np.ndarray:
    return np.random.default_rng((index, rank)).normal(size=shape(index)).astype(np.float32)


def points(steps: int) -> np.ndarray:
    """The points by step and rank."""
    return np.random.default_rng(steps).normal(size=(steps, SIZE)).astype(np.float32)


def expected(index: int, steps: int) -> np.ndarray:
    value = initial(index, 0).astype(np.float64)
    for mean in points(steps).astype(np.float64).mean(axis=1):
        value -= LEARNING_RATE * (value - mean)
    return value


def gradient(variable: Any, point: Any, index: int) -> Any:
    """`variable` - `point`, after work whose duration varies."""
    work = tf.reduce_sum(tf.random.uniform([8 * (index % 5 + 1), 16]))
    return variable - point + 1e-30 * work


def pairs(variables: list[Any], point: Any) -> list[tuple[Any, Any]]:
    """(gradient, variable), in an order that differs by rank."""
    order = np.random.default_rng(RANK).permutation(len(variables))
    return [(gradient(variables[i], point, i), variables[i]) for i in order]


@functools.cache
def build(count: int) -> tuple[Any, ...]:
    """(graph, variables, point, train, initialize)"""
    graph = tf.Graph()
    with graph.as_default():
        variables = [
            v1.get_variable(f"v{i}", initializer=initial(i, RANK), use_resource=bool(i % 2))
            for i in range(count)
        ]
        point = v1.placeholder(tf.float32, [])
        optimizer = v1.train.GradientDescentOptimizer(LEARNING_RATE)
        train = optimizer.apply_gradients(pairs(variables, point))
        return graph, variables, point, train, v1.global_variables_initializer()


def in_session(threads: int, count: int, steps: int) -> list[np.ndarray]:
    graph, variables, point, train, initialize = build(count)
    config = v1.ConfigProto(
        inter_op_parallelism_threads=threads,
        intra_op_parallelism_threads=1,
        use_per_session_threads=True,
    )
    with v1.Session(graph=graph, config=config) as session:
        session.run(initialize)
        step = session.make_callable(train, [point])
        session.run(train, {point: points(steps)[0, RANK]})
        for own in points(steps)[1:, RANK]:
            step(own)
        return session.run(variables)


def in_function(count: int, steps: int) -> list[np.ndarray]:
    variables = [tf.Variable(initial(i, RANK), name=f"v{i}") for i in range(count)]
    optimizer = v1.train.GradientDescentOptimizer(LEARNING_RATE)

    @tf.function
    def step(point: Any) -> None:
        optimizer.apply_gradients(pairs(variables, point))

    for own in points(steps)[:, RANK]:
        step(tf.constant(own))
    return [variable.numpy() for variable in variables]


def main() -> None:
    if MODE == "function":
        single_threaded_ops(inter_op=THREADS[0])
    printed = {}
    for threads in THREADS:
        for count, steps in STAGES:
            start = time.monotonic()
            if MODE == "session":
                values = in_session(threads, count, steps)
            else:
                values = in_function(count, steps)
            far = max(float(np.abs(v - expected(i, steps)).max()) for i, v in enumerate(values))
            digest = hashlib.sha256(b"".join(v.tobytes() for v in values)).hexdigest()
            printed[f"{count} variables, {steps} steps, {threads} threads"] = {
                "digest": digest,
                "distance": far,
                "seconds": round(time.monotonic() - start, 1),
            }
    result(printed)


main()
