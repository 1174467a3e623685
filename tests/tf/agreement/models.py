"""Linear models for eager code and for graphs; each rank has its own data.

A plain process trains on the data of two ranks: its loss is the mean of their losses.
Initial values differ by rank; rank 0's are the plain process's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from common import encode

v1 = tf.compat.v1
RANK, SIZE = tf.mpi.rank(), tf.mpi.size()
PARTS = [RANK] if SIZE > 1 else [0, 1]  # the ranks whose data this process uses


def initial(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng((seed, RANK)).normal(size=shape).astype(np.float32)


def batch(seed: int, step: int, rank: int, rows: int = 8) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng((seed, step, rank, 1))
    x, y = random.normal(size=(rows, 3)), random.normal(size=(rows, 2))
    return x.astype(np.float32), y.astype(np.float32)


def batches(seed: int, step: int) -> list[tuple[np.ndarray, np.ndarray]]:
    return [batch(seed, step, rank) for rank in PARTS]


def mean_loss(w: Any, b: Any, data: list[tuple[Any, Any]]) -> Any:
    losses = [tf.reduce_mean(tf.square(tf.matmul(x, w) + b - y)) for x, y in data]
    return tf.add_n(losses) / len(losses)


class Linear:
    """For eager code and tf.function. Its variables have the default names."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.w = tf.Variable(initial(seed, 3, 2))
        self.b = tf.Variable(initial(seed + 1, 2))

    def update(self, optimizer: Any, data: list[tuple[Any, Any]]) -> Any:
        with tf.GradientTape() as tape:
            loss = mean_loss(self.w, self.b, data)
        variables = [self.w, self.b]
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss

    def data(self, step: int) -> list[tuple[Any, Any]]:
        return [(tf.constant(x), tf.constant(y)) for x, y in batches(self.seed, step)]

    def state(self, *optimizers: Any) -> dict[str, Any]:
        """The values of its variables and of their slots."""
        found = {"w": self.w, "b": self.b}
        for number, optimizer in enumerate(optimizers):
            for slot in optimizer.get_slot_names():
                found[f"w {slot} {number}"] = optimizer.get_slot(self.w, slot)
        return {name: encode(variable.numpy()) for name, variable in found.items()}


class LinearGraph:
    """For sessions: each has its own graph, with the same names in all of them."""

    def __init__(self, seed: int, use_resource: bool = True) -> None:
        self.seed = seed
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.w = v1.get_variable(
                "w", initializer=initial(seed, 3, 2), use_resource=use_resource
            )
            self.b = v1.get_variable(
                "b", initializer=initial(seed + 1, 2), use_resource=use_resource
            )
            self.places = [
                (v1.placeholder(tf.float32, [None, 3]), v1.placeholder(tf.float32, [None, 2]))
                for _ in PARTS
            ]
            self.loss = mean_loss(self.w, self.b, self.places)
            self.train: Any = None

    def minimize(self, optimizer: Any, **arguments: Any) -> Any:
        with self.graph.as_default():
            self.train = optimizer.minimize(self.loss, **arguments)
            self.initialize = v1.global_variables_initializer()
        return self

    def feed(self, step: int) -> dict[Any, Any]:
        feed = {}
        for (x, y), values in zip(self.places, batches(self.seed, step)):
            feed[x], feed[y] = values
        return feed

    def run(self, session: Any, steps: int) -> dict[str, Any]:
        for step in range(steps):
            session.run(self.train, self.feed(step))
        return self.state(session)

    def state(self, session: Any) -> dict[str, Any]:
        with self.graph.as_default():
            variables = v1.global_variables()
        return {v.name: encode(value) for v, value in zip(variables, session.run(variables))}
