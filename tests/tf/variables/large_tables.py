"""Tables of 256 MB with sparse gradients, on two ranks that start with different values.

Prints by case some rows after two steps, and the growth of memory over its initial size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from common import place, result

v1 = tf.compat.v1
RANK, SIZE = place()
SHAPE = ROWS, WIDTH = 1_000_000, 64
PICKED = [0, 1, 4096, ROWS - 1]
ALIGNMENT = 64  # a fed array with this alignment is not copied


def memory(key: str) -> int:
    """Memory of this process in bytes: VmHWM, the peak, or VmRSS."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(key)) * 1024


def grown(run: Callable[[], Any]) -> int:
    """The growth of peak memory during `run`."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    before = memory("VmRSS")
    run()
    return memory("VmHWM") - before


def filled() -> tf.Tensor:
    return tf.fill(SHAPE, 1.0 + RANK)


def gradient() -> tf.IndexedSlices:
    return tf.IndexedSlices(tf.ones([4096, WIDTH]), tf.range(RANK, RANK + 4096), tf.constant(SHAPE))


def eager(step: Callable[[], Any], table: tf.Variable) -> dict[str, Any]:
    return after(lambda: [step(), step()], table)


def after(steps: Callable[[], Any], table: tf.Variable) -> dict[str, Any]:
    rise = grown(steps)
    return {"grown": rise, "values": tf.gather(table, PICKED)[:, 0].numpy().tolist()}


def raw_op() -> dict[str, Any]:
    table = tf.Variable(filled(), name="op")
    rows = gradient()

    def step() -> None:  # with an op without slots: table -= 0.5 * gradient
        tf.raw_ops.ResourceSparseApplyProximalGradientDescent(
            var=table.handle, alpha=0.5, l1=0.0, l2=0.0, grad=rows.values, indices=rows.indices
        )

    return eager(step, table)


def of_keras() -> dict[str, Any]:
    table = keras.Variable(lambda shape, dtype: filled(), SHAPE, name="keras")
    sgd, rows = keras.optimizers.SGD(0.5), gradient()
    return eager(lambda: sgd.apply_gradients([(rows, table)]), table.value)


def keras_fit() -> dict[str, Any]:
    """Keras's Embedding reads the whole table in each step, which stock TensorFlow then copies.

    The gradients are ones that depend on the rows, so they are ready after the table has been read.
    """
    ids = np.arange(RANK, RANK + 4096, dtype=np.int32)
    table = keras.layers.Embedding(*SHAPE, lambda shape, dtype: filled())
    model = keras.Sequential([keras.Input((), dtype="int32"), table])
    model.compile(
        keras.optimizers.SGD(0.5 * len(ids)),  # Keras takes the mean over the rows
        loss=lambda _, rows: tf.reduce_sum(tf.abs(rows), axis=-1),
        jit_compile=False,
    )

    def fit() -> None:
        model.fit(ids, ids, batch_size=len(ids), epochs=2, shuffle=False, verbose=0)

    return after(fit, table.embeddings.value)


def compat_v1() -> dict[str, Any]:
    table = tf.Variable(filled(), name="compat_v1")
    descent, rows = v1.train.GradientDescentOptimizer(0.5), gradient()

    def step() -> None:
        with tf.GradientTape():  # the first tape synchronizes all variables
            pass
        descent.apply_gradients([(rows, table)])

    return eager(step, table)


def session(use_resource: bool) -> dict[str, Any]:
    with tf.Graph().as_default(), v1.Session() as own:
        # Fed, because otherwise the graph holds the table as a constant and stock TensorFlow copies
        # it.
        value = v1.placeholder(tf.float32, [])
        table = v1.get_variable(
            "table", initializer=tf.fill(SHAPE, value), use_resource=use_resource
        )
        step = v1.train.GradientDescentOptimizer(0.5).apply_gradients([(gradient(), table)])
        picked = tf.gather(table, PICKED)[:, 0]
        own.run(table.initializer, {value: 1.0 + RANK})
        rise = grown(lambda: [own.run(step), own.run(step)])
        return {"grown": rise, "values": own.run(picked).tolist()}


def shared_memory(use_resource: bool) -> dict[str, Any]:
    """Variables whose memory is shared: one made from another, one made from a fed array."""
    shape = [2**18, WIDTH]  # 64 MiB
    room = np.empty(2**24 + ALIGNMENT, np.float32)
    begin = -room.ctypes.data % ALIGNMENT // room.itemsize
    start = room[begin : begin + 2**24].reshape(shape)
    start[:] = 10.0 + RANK
    with tf.Graph().as_default(), v1.Session() as own:
        held = v1.placeholder(tf.float32, shape)
        first = v1.get_variable(
            "first", initializer=tf.fill(shape, 1.0 + RANK), use_resource=use_resource
        )
        twin = v1.get_variable("twin", initializer=tf.identity(first), use_resource=use_resource)
        fed = v1.get_variable("fed", initializer=held, use_resource=use_resource)
        rows = tf.IndexedSlices(tf.ones([1, WIDTH]), tf.constant([RANK]), tf.constant(shape))
        step = v1.train.GradientDescentOptimizer(0.5).apply_gradients([(rows, first)])
        own.run(first.initializer)
        own.run(twin.initializer)
        own.run(fed.initializer, {held: start})
        own.run(step)
        found = own.run([tensor[:3, 0] for tensor in (first, twin, fed)])
        return {"values": [values.tolist() for values in found], "fed": float(start.mean())}


def main() -> None:
    tables: dict[str, Callable[[], Any]] = {
        "keras fit": keras_fit,  # first, because memory freed by others could be reused for a table
        "op": raw_op,
        "keras": of_keras,
        "compat_v1": compat_v1,
        "session ref": lambda: session(False),
        "session resource": lambda: session(True),
        "shared ref": lambda: shared_memory(False),
        "shared resource": lambda: shared_memory(True),
    }
    result({name: case() for name, case in tables.items()})


main()
