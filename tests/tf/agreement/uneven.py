"""Ranks that end after different numbers of steps; the others average over the remaining ones.

    uneven.py session | function | eager STEPS_OF_RANK_0,STEPS_OF_RANK_1,...

Prints the distance of each rank's variables, at the end of its script, from the expected values.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import tensorflow as tf
from common import result, single_threaded_ops
from models import RANK, Linear, LinearGraph, batch

v1 = tf.compat.v1
MODE, STEPS = sys.argv[1], [int(word) for word in sys.argv[2].split(",")]
RATE, SEED = 0.1, 10


def expected(w: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    for step in range(STEPS[RANK]):
        gradients: list[Any] = []
        for rank, steps in enumerate(STEPS):
            if step < steps:
                x, y = batch(SEED, step, rank)
                error = (x @ w + b - y) * 2 / y.size
                gradients.append((x.T @ error, error.sum(axis=0)))
        w, b = (
            value - RATE * np.mean(parts, axis=0) for value, parts in zip((w, b), zip(*gradients))
        )
    return w, b


def first_values() -> list[np.ndarray]:
    """Rank 0's initial values, on every rank."""
    return [
        np.random.default_rng((SEED + n, 0)).normal(size=shape).astype(np.float32)
        for n, shape in enumerate([(3, 2), (2,)])
    ]


def train() -> list[np.ndarray]:
    optimizer = v1.train.GradientDescentOptimizer(RATE)
    if MODE == "session":
        graph = LinearGraph(SEED).minimize(optimizer)
        with v1.Session(graph=graph.graph) as session:
            session.run(graph.initialize)
            graph.run(session, STEPS[RANK])
            return session.run([graph.w, graph.b])
    model = Linear(SEED)
    step = tf.function(model.update) if MODE == "function" else model.update
    for number in range(STEPS[RANK]):
        step(optimizer, model.data(number))
    return [model.w.numpy(), model.b.numpy()]


single_threaded_ops()
pairs = zip(train(), expected(*first_values()))
result({"distance": max(float(np.abs(ours - theirs).max()) for ours, theirs in pairs)})
