"""Scripts whose ranks wait for one another.

deadlocks.py goes_on DIR           cases that must succeed
deadlocks.py WAY                   a deadlock of WAYS, in which no rank can continue
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from common import place, result

v1 = tf.compat.v1
RANK, SIZE = place()
SLEEP = 4.0  # seconds, longer than the delay before a deadlock is reported
X, Y = np.ones((16, 3), np.float32), np.ones((16, 1), np.float32)


class Loop:
    """A custom loop: each step averages the distance of a variable to each rank's points."""

    def __init__(self, name: str = "weights") -> None:
        self.variable = tf.Variable(np.zeros(2), name=name)
        self.optimizer = v1.train.GradientDescentOptimizer(1.0)

    def step(self, point: float = RANK + 1.0) -> None:
        with tf.GradientTape() as tape:
            loss = point * tf.reduce_sum(self.variable)
        gradient = tape.gradient(loss, self.variable)
        self.optimizer.apply_gradients([(gradient, self.variable)])

    def value(self) -> float:
        return float(self.variable[0])


def model() -> keras.Model:
    keras.utils.set_random_seed(1)
    made = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)], name="m")
    made.compile(keras.optimizers.SGD(0.1), "mse")
    return made


def one_batch_more_then_a_save(directory: str) -> dict[str, Any]:
    loop = Loop()
    for _ in range(5 if RANK == 0 else 3):
        loop.step()
    start = time.monotonic()
    checkpoint = tf.train.Checkpoint(variable=loop.variable)
    path = checkpoint.save(str(Path(directory) / "uneven"))
    seconds = time.monotonic() - start
    saved = tf.train.load_variable(path, "variable/.ATTRIBUTES/VARIABLE_VALUE")
    found: dict[str, Any] = {"saved": float(saved[0]), "own": loop.value(), "seconds": seconds}
    try:
        loop.step()
    except tf.errors.FailedPreconditionError as error:
        found["then"] = str(error)
    return found


def uneven_until_a_barrier() -> dict[str, Any]:
    loop = Loop("of a barrier")
    for _ in range(5 if RANK == 1 else 3):
        loop.step()
    tf.mpi.barrier()
    found = {"own": loop.value()}
    tf.mpi.broadcast_variables([loop.variable], root=1)
    loop.step()
    return found | {"then": loop.value()}


def a_thread_beside_a_barrier() -> float:
    """A thread starts to train while rank 1's script is already in a barrier."""
    loop = Loop("of a thread")

    def late() -> None:
        time.sleep(SLEEP if RANK == 1 else 0)
        loop.step()

    thread = threading.Thread(target=late)
    thread.start()
    if RANK == 0:
        thread.join()
    tf.mpi.barrier()
    thread.join()
    return loop.value()


class Sleeps(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if RANK == 1 and batch == 1:
            time.sleep(SLEEP)


def slow_batches() -> Iterator[Any]:
    for number in range(4):
        if number == 2 and RANK == 0:
            time.sleep(SLEEP)
        yield X, Y


def goes_on() -> None:
    found: dict[str, Any] = {}
    model().fit(X, Y, batch_size=4, epochs=1, callbacks=[Sleeps()], verbose=0)
    loop = Loop("slow")
    if RANK == 1:
        time.sleep(SLEEP)
    loop.step()
    found["slow"] = loop.value()
    found["thread"] = a_thread_beside_a_barrier()
    found["barrier"] = uneven_until_a_barrier()
    generated = model()
    generated.fit(slow_batches(), epochs=1, verbose=0)
    found["weights"] = [float(weight) for weight in generated.get_weights()[0][:, 0]]
    found["save"] = one_batch_more_then_a_save(sys.argv[2])
    result(found)


def crossing() -> None:
    first, second = Loop("first"), Loop("second")
    for loop in (first, second):
        loop.step()
    for loop in (first, second) if RANK == 0 else (second, first):
        loop.step()


def a_variable_more() -> None:
    loop, more = Loop(), Loop("more")
    more.step()
    for number in range(3):
        if number == 1 and RANK == 1:
            more.step()
        loop.step()


def fit_or_barrier() -> None:
    if RANK == 0:
        model().fit(X, Y, epochs=1, verbose=0)
    else:
        tf.mpi.barrier()


class Evaluates(keras.callbacks.Callback):
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if RANK == 1 and epoch == 1:
            self.model.evaluate(X, Y, verbose=0)


def evaluate_on_one() -> None:
    model().fit(X, Y, batch_size=4, epochs=3, callbacks=[Evaluates()], verbose=0)


def evaluate_in_a_loop() -> None:
    loop, one = Loop(), model()
    for number in range(3):
        if number == 1 and RANK == 0:
            one.evaluate(X, Y, verbose=0)
        loop.step()


def undecoded() -> None:
    """Only rank 0 decodes a sample that cannot be decoded; the script then continues."""

    def decode(number: Any) -> Any:
        finite = tf.debugging.check_numerics(1.0 / tf.cast(number - 13, tf.float32), "sample 13")
        return tf.fill([3], finite), [1.0]

    try:
        model().fit(tf.data.Dataset.range(40).map(decode).batch(4), verbose=0)
    except tf.errors.InvalidArgumentError:
        Loop().step()


WAYS: dict[str, Any] = {
    "crossing": crossing,
    "a variable more": a_variable_more,
    "fit or barrier": fit_or_barrier,
    "evaluate on one": evaluate_on_one,
    "evaluate in a loop": evaluate_in_a_loop,
    "a sample": undecoded,
}

if __name__ == "__main__":
    if sys.argv[1] == "goes_on":
        goes_on()
    else:
        print("AT", time.time(), flush=True)
        WAYS[sys.argv[1]]()
