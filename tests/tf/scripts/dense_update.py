"""Optimizers of compat.v1 on variables so large that the ranks divide their update.

Prints by case a digest of all variables and slots, how far they are from numpy's, and how many
updates of a step were divided.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import tensorflow as tf
from common import place, result, single_threaded_ops
from tensorflow.mpi._src.runtime import c_api

v1 = tf.compat.v1
RANK, SIZE = place()
WIDTH, STEPS, RATE = 600, 5, 0.01  # float32 [600, 600] is 1.4 MB


def batch(rank: int, step: int) -> np.ndarray:
    return np.random.default_rng([rank, step]).normal(size=(4, WIDTH)).astype("f")


def initial(layer: int, rank: int = RANK) -> np.ndarray:
    """Rank 0's must become every rank's."""
    random = np.random.default_rng([rank, 100 + layer])
    return (random.normal(size=(WIDTH, WIDTH)) / WIDTH**0.5).astype("f")


def expected(steps: int = STEPS, ranks: int = SIZE, layers: Any = None) -> list[np.ndarray]:
    """Two linear layers, by gradient descent on the mean of squares, for the whole batch."""
    first, second = layers or (initial(0, 0).astype(float), initial(1, 0).astype(float))
    for step in range(steps):
        x = np.concatenate([batch(rank, step) for rank in range(ranks)]).astype(float)
        out = x @ first @ second
        back = 2 * out / out.size
        d_second, d_first = (x @ first).T @ back, x.T @ (back @ second.T)
        first, second = first - RATE * WIDTH * d_first, second - RATE * WIDTH * d_second
    return [first, second]


class Model:
    """`make` gives the optimizer; `train` makes the op of it, else it is minimize."""

    def __init__(self, make: Any, train: Any = None, use_resource: bool = True) -> None:
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.x = v1.placeholder(tf.float32, [None, WIDTH])
            self.layers = [
                v1.get_variable(f"w{i}", initializer=initial(i), use_resource=use_resource)
                for i in range(2)
            ]
            # The second layer's weights are read after their gradient is there: for the first's.
            out = self.x @ self.layers[0] @ self.layers[1]
            loss = tf.reduce_mean(out**2)
            optimizer = make()
            self.train = (train or minimize)(optimizer, loss)
            self.state = v1.global_variables()
            self.session = v1.Session()
            self.session.run(v1.global_variables_initializer())

    def step(self, step: int) -> int:
        """How many of its updates were divided."""
        before = c_api.stats()["divided"]
        self.session.run(self.train, {self.x: batch(RANK, step)})
        return c_api.stats()["divided"] - before

    def run(self) -> dict[str, Any]:
        divided = [self.step(step) for step in range(STEPS)]
        return {**self.summary(), "divided": divided}

    def summary(self, wanted: list[np.ndarray] | None = None) -> dict[str, Any]:
        arrays = self.session.run(self.state)
        layers = self.session.run(self.layers)
        digest = hashlib.sha256(b"".join(np.asarray(a).tobytes() for a in arrays)).hexdigest()
        pairs = zip(layers, wanted or expected())
        return {"digest": digest, "distance": max(float(np.abs(a - b).max()) for a, b in pairs)}


def minimize(optimizer: Any, loss: Any) -> Any:
    return optimizer.minimize(loss)


def clipped(optimizer: Any, loss: Any) -> Any:
    """No average goes to an optimizer op as it is."""
    pairs = optimizer.compute_gradients(loss)
    return optimizer.apply_gradients([(tf.clip_by_value(g, -1e9, 1e9), v) for g, v in pairs])


def read_by_one(optimizer: Any, loss: Any) -> Any:
    """Rank 0 alone looks at the averages, as for a summary."""
    pairs = optimizer.compute_gradients(loss)
    train = optimizer.apply_gradients(pairs)
    return [train, [tf.norm(gradient) for gradient, _ in pairs]] if RANK == 0 else train


class Watched(tf.compat.v1.train.GradientDescentOptimizer):
    """Rank 0 alone looks at the averages, inside minimize."""

    def compute_gradients(self, *args: Any, **arguments: Any) -> Any:
        pairs = super().compute_gradients(*args, **arguments)
        self.seen = [tf.norm(gradient) for gradient, _ in pairs] if RANK == 0 else []
        return pairs


def watched(optimizer: Any, loss: Any) -> Any:
    return [optimizer.minimize(loss), optimizer.seen]


def applied(optimizer: Any, loss: Any) -> Any:
    """Averaged as apply_gradients begins."""
    layers = v1.trainable_variables()
    return optimizer.apply_gradients(zip(tf.gradients(loss, layers), layers))


def raw(optimizer: Any, loss: Any) -> Any:
    """Averaged by nothing but the optimizer op."""
    layers = v1.trainable_variables()
    rate = RATE * WIDTH
    updates = [
        tf.raw_ops.ResourceApplyGradientDescent(var=layer.handle, alpha=rate, delta=gradient)
        for layer, gradient in zip(layers, tf.gradients(loss, layers))
    ]
    return tf.group(*updates)


def twice(optimizer: Any, loss: Any) -> Any:
    """Two updates of each variable by half the rate, which nothing orders."""
    second = v1.train.GradientDescentOptimizer(RATE * WIDTH / 2, name="second")
    gradients = tf.gradients(loss, v1.trainable_variables())
    pairs = list(zip(gradients, v1.trainable_variables()))
    return tf.group(optimizer.apply_gradients(pairs), second.apply_gradients(pairs))


def descent(**arguments: Any) -> Any:
    return v1.train.GradientDescentOptimizer(RATE * WIDTH, **arguments)


def held() -> dict[str, Any]:
    """The variable's memory is somebody else's, too: what was read stays as it was."""
    layer = tf.Variable(initial(0))
    wanted = initial(0, 0).astype(float)
    same = True
    divided = []
    for step in range(STEPS):
        value = layer.read_value()
        kept = value.numpy().copy()
        gradient = np.outer(batch(RANK, step)[0], np.arange(WIDTH)).astype("f") / WIDTH
        before = c_api.stats()["divided"]
        tf.raw_ops.ResourceApplyGradientDescent(var=layer.handle, alpha=RATE, delta=gradient)
        divided.append(c_api.stats()["divided"] - before)
        same = same and np.array_equal(value.numpy(), kept) and not np.array_equal(layer, kept)
        mean = sum(batch(rank, step)[0].astype(float) for rank in range(SIZE)) / SIZE
        wanted = wanted - RATE * np.outer(mean, np.arange(WIDTH)) / WIDTH
    return {
        "digest": hashlib.sha256(layer.numpy().tobytes()).hexdigest(),
        "distance": float(np.abs(layer.numpy() - wanted).max()),
        "divided": divided,
        "same": same,
    }


def without_the_last() -> dict[str, Any]:
    """Whose share nobody owns any more."""
    model = Model(descent)
    model.step(0)
    model.step(1)
    if RANK == SIZE - 1:
        return {}
    layers = expected(2)
    tf.mpi.barrier("the last has gone")
    divided = model.step(0)
    return {**model.summary(expected(1, SIZE - 1, layers)), "divided": divided}


def main() -> None:
    single_threaded_ops()
    cases = {
        "descent": Model(descent),
        "momentum": Model(lambda: v1.train.MomentumOptimizer(RATE, 0.9)),
        "adam": Model(lambda: v1.train.AdamOptimizer(RATE)),
        "raw": Model(descent, raw),
        "clipped": Model(descent, clipped),
        "applied": Model(descent, applied),
        "read": Model(descent, read_by_one),
        "watched": Model(lambda: Watched(RATE * WIDTH), watched),
        "locking": Model(lambda: descent(use_locking=True)),
        "ref": Model(descent, use_resource=False),
        "twice": Model(lambda: v1.train.GradientDescentOptimizer(RATE * WIDTH / 2), twice),
    }
    found: dict[str, Any] = {name: model.run() for name, model in cases.items()}
    found["held"] = held()
    found["alone"] = without_the_last()
    result(found)


main()
