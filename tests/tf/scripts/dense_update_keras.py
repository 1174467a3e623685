"""Keras's SGD on variables so large that the ranks divide their update.

    dense_update_keras.py own      every rank has data of its own (TF_MPI_SHARD=off)
    dense_update_keras.py shared   all have the same, of which fit gives each a part

Prints by case a digest of all variables, how far they are from numpy's, and how many updates of
a step were divided.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from common import place, result, single_threaded_ops
from tensorflow.mpi._src.runtime import c_api

RANK, SIZE = place()
WIDTH, ROWS, STEPS, RATE = 600, 4, 5, 6.0  # float32 [600, 600] is 1.4 MB
Optimizer = Callable[[], Any]


def batch(rank: int, step: int) -> np.ndarray:
    return np.random.default_rng([rank, step]).normal(size=(ROWS, WIDTH)).astype("f")


def initial(layer: int) -> np.ndarray:
    """Rank 0's must become every rank's."""
    random = np.random.default_rng([RANK, 100 + layer])
    return (random.normal(size=(WIDTH, WIDTH)) / WIDTH**0.5).astype("f")


def whole(step: int, extra: int = 0) -> np.ndarray:
    """All ranks' rows, and some that make the parts unequal."""
    return np.concatenate([*(batch(rank, step) for rank in range(SIZE)), batch(SIZE, step)[:extra]])


def expected(first: np.ndarray, second: np.ndarray, extra: int) -> list[np.ndarray]:
    """Two linear layers, by gradient descent on the mean of squares, for the whole batch."""
    first, second = first.astype(float), second.astype(float)
    for step in range(STEPS):
        x = whole(step, extra).astype(float)
        out = x @ first @ second
        back = 2 * out / out.size
        d_second, d_first = (x @ first).T @ back, x.T @ (back @ second.T)
        first, second = first - RATE * d_first, second - RATE * d_second
    return [first, second]


def model(optimizer: Optimizer, fit_model: type = keras.Sequential, **layer: Any) -> Any:
    dense = [keras.layers.Dense(WIDTH, use_bias=False, **layer) for _ in range(2)]
    made = fit_model([keras.Input((WIDTH,)), *dense])
    for i, each in enumerate(dense):
        each.kernel.assign(initial(i))
    made.compile(optimizer(), loss="mse", jit_compile=False)
    return made


def run(steps: Iterator[None], made: Any, extra: int = 0) -> dict[str, Any]:
    """`steps` trains by one batch each time that it is asked."""
    start = tf.mpi.broadcast([v.numpy() for v in made.trainable_variables])
    divided = []
    before = c_api.stats()["divided"]
    for _ in steps:
        divided.append(c_api.stats()["divided"] - before)
        before += divided[-1]
    layers = [v.numpy() for v in made.trainable_variables]
    pairs = zip(layers, expected(np.asarray(start[0]), np.asarray(start[1]), extra))
    return {
        "digest": hashlib.sha256(b"".join(layer.tobytes() for layer in layers)).hexdigest(),
        "distance": max(float(np.abs(a - b).max()) for a, b in pairs),
        "divided": divided,
    }


def fitted(made: Any) -> dict[str, Any]:
    """By fit, a batch at a time."""
    return run(fits(made, lambda step: batch(RANK, step)), made)


def shared(made: Any, extra: int) -> dict[str, Any]:
    """As `fitted`, by the whole batch on every rank."""
    return run(fits(made, lambda step: whole(step, extra)), made, extra)


def fits(made: Any, inputs: Callable[[int], np.ndarray]) -> Iterator[None]:
    for step in range(STEPS):
        x = inputs(step)
        made.fit(x, np.zeros_like(x), batch_size=len(x), verbose=0, shuffle=False)
        yield


def looped(made: Any) -> dict[str, Any]:
    """By a loop of the script's own."""

    @tf.function
    def train(x: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(made(x, training=True) ** 2)
        variables = made.trainable_variables
        made.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

    def steps() -> Iterator[None]:
        for step in range(STEPS):
            train(batch(RANK, step))
            yield

    return run(steps(), made)


def plain(**arguments: Any) -> Any:
    return keras.optimizers.SGD(RATE, **arguments)


class Halves(keras.optimizers.SGD):
    """Does something of its own with every average: twice half of it."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        for _ in range(2):
            super().update_step(gradient, variable, learning_rate / 2)


class Looks(keras.Sequential):
    """A train_step of its own, in which rank 0 alone reads the gradients."""

    def train_step(self, data: Any) -> Any:
        x, _ = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self(x, training=True) ** 2)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        if RANK == 0:
            tf.debugging.check_numerics(tf.linalg.global_norm(gradients), "gradients")
        return {"loss": loss}


class Same(keras.constraints.Constraint):
    """What the variable is after its update."""

    def __call__(self, w: Any) -> Any:
        return w


def main() -> None:
    single_threaded_ops()
    if sys.argv[1] == "shared":
        result({"equal": shared(model(plain), 0), "unequal": shared(model(plain), 1)})
        return
    found = {
        "fit": fitted(model(plain)),
        "loop": looped(model(plain)),
        "looks": fitted(model(plain, Looks)),
        "constraint": fitted(model(plain, kernel_constraint=Same())),
        "subclass": fitted(model(lambda: Halves(RATE))),
        "clipped": fitted(model(lambda: plain(clipvalue=1e9))),
        "momentum": fitted(model(lambda: plain(momentum=1e-9))),
        "decay": fitted(model(lambda: plain(weight_decay=1e-12))),
    }
    result(found)


main()
