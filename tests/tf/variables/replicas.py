"""Ranks whose replicas diverge during training, in every way to train: who is told what, and when.

Each rank has its own data. In every case except `undisturbed` and `threads`, one bit of one rank's
variable is flipped behind TensorFlow's back before step DISTURBED.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from common import compiles, result, single_threaded_ops
from tensorflow.mpi._src.variables import initial_broadcast, large_variables, replica_check

v1 = tf.compat.v1
RANK, SIZE = tf.mpi.rank(), tf.mpi.size()
ODD = SIZE - 1  # the rank with faulty memory
DISTURBED, STEPS = 6, 14
EVERY = int(os.environ["TF_MPI_CHECK"])


def data(step: int) -> np.ndarray:
    random = np.random.default_rng(100 * step + RANK)
    return random.normal(size=(4, 3)).astype(np.float32)


def flip(array: np.ndarray, element: int = 3, bit: int = 12) -> None:
    """Flips a bit of `array` in place, whatever owns the memory."""
    address = array.ctypes.data + element * array.itemsize
    word = ctypes.c_uint32.from_address(address)
    word.value ^= 1 << bit


def run(step: Callable[[int], Any], disturb: Callable[[], None] | None) -> dict[str, Any]:
    """The number, from 1, and message of the step that raised; None if none did."""
    for number in range(1, STEPS + 1):
        if number == DISTURBED and disturb is not None and RANK == ODD:
            disturb()
        try:
            step(number)
        except RuntimeError as error:
            return {"step": number, "error": str(error)}
    return {"step": None, "error": ""}


def in_function(disturbed: bool, compiled: bool) -> dict[str, Any]:
    w = tf.Variable(tf.ones([3, 2]), name=f"w_function_{disturbed}_{compiled}")
    optimizer = keras.optimizers.Adam(0.01)
    optimizer.build([w])

    @tf.function(jit_compile=compiled and compiles())
    def step(x: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(x @ w))
        optimizer.apply_gradients([(tape.gradient(loss, w), w)])

    return run(
        lambda number: step(tf.constant(data(number))),
        (lambda: flip(large_variables.view(w.handle))) if disturbed else None,
    )


def eagerly(optimizer: Any, name: str) -> dict[str, Any]:
    w = tf.Variable(tf.ones([3, 2]), name=name)

    def step(number: int) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(data(number) @ w))
        optimizer.apply_gradients([(tape.gradient(loss, w), w)])

    return run(step, lambda: flip(large_variables.view(w.handle)))


def in_session(resource: bool) -> dict[str, Any]:
    with tf.Graph().as_default():
        w = v1.get_variable("w", initializer=tf.ones([3, 2]), use_resource=resource)
        x = v1.placeholder(tf.float32, [None, 3])
        train = v1.train.MomentumOptimizer(0.01, 0.9).minimize(tf.reduce_mean(tf.square(x @ w)))
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())

            def disturb() -> None:
                with large_variables.shared_fetches():
                    flip(session.run(w))

            return run(lambda number: session.run(train, {x: data(number)}), disturb)


def assigns_on_one_rank() -> dict[str, Any]:
    """Not a memory fault but the script's own assignment."""
    w = tf.Variable(tf.ones([2]), name="w_assigned")
    optimizer = keras.optimizers.SGD(0.01)

    @tf.function
    def step(x: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w * x)
        optimizer.apply_gradients([(tape.gradient(loss, w), w)])

    return run(
        lambda number: step(tf.constant([float(number), RANK])), lambda: w.assign([5.0, 0.25])
    )


def a_part_at_a_time() -> dict[str, Any]:
    """As for a model too large to compare at once: 8 bytes first."""
    least, limited = replica_check._MIN_BYTES, replica_check._is_limited
    replica_check._MIN_BYTES = 8
    replica_check.Replicas.limit = 8
    replica_check._is_limited = lambda: True
    try:
        return eagerly(keras.optimizers.SGD(0.01), "w_parts")
    finally:
        replica_check._MIN_BYTES, replica_check._is_limited = least, limited


def in_fit() -> dict[str, Any]:
    """A large model, compared in parts, with a last batch of another size; no errors."""
    model = keras.Sequential([keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    random = np.random.default_rng(3)
    x, y = random.normal(size=(130, 5)), random.normal(size=(130, 1))
    losses = model.fit(x, y, batch_size=12, epochs=2, verbose=0).history["loss"]
    return {"step": None, "error": "" if losses[1] < losses[0] else "it does not train"}


def in_threads() -> dict[str, Any]:
    """Two threads train one variable in no fixed order, so nothing can be compared."""
    w = tf.Variable(tf.ones([3, 2]), name="w_threads")
    found: list[Any] = [None, None]

    def train(number: int) -> None:
        optimizer = v1.train.GradientDescentOptimizer(0.01 * (number + 1))

        @tf.function
        def step(x: Any) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(x @ w))
            optimizer.apply_gradients([(tape.gradient(loss, w), w)])

        found[number] = run(lambda n: step(tf.constant(data(n))), None)

    for number in (0, 1):  # traced in order, so that their names are equal
        thread = threading.Thread(target=train, args=(number,))
        thread.start()
        thread.join()
    return found[1]


def left_by_eager_code() -> int:
    """The number of variables still known: assign_add creates one that is gone at once."""
    variable = tf.Variable(0.0)
    before = len(initial_broadcast._variables)
    for _ in range(100):
        variable.assign_add(1.0)
    return len(initial_broadcast._variables) - before


def main() -> None:
    single_threaded_ops()
    with tf.device("CPU:0"):
        result(
            {
                "undisturbed": in_function(False, False),
                "function": in_function(True, False),
                "compiled": in_function(True, True),
                "eager Keras": eagerly(keras.optimizers.Adam(0.01), "w_keras"),
                "eager v1": eagerly(v1.train.AdamOptimizer(0.01), "w_v1"),
                "session ref": in_session(False),
                "session resource": in_session(True),
                "parts": a_part_at_a_time(),
                "assigned": assigns_on_one_rank(),
                "fit": in_fit(),
                "threads": in_threads(),
                "left": left_by_eager_code(),
            }
        )


if __name__ == "__main__":
    main()
