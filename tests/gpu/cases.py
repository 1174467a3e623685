"""Trainings on a GPU that must give the same result on N ranks: `python cases.py OUT.npz [NAMES]`.

Rank 0 writes the weights of each case. equality.py starts this script in one process and on ranks.
If a case fails, it is reported and the others continue.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

RANDOM = np.random.default_rng(5)
ROWS = RANDOM.normal(size=(256, 24)).astype(np.float32)
LABELS = (ROWS.sum(axis=1) > 0).astype(np.int32)
WORDS = RANDOM.integers(0, 60, size=(256, 6))
BATCH = 64

Weights = list[np.ndarray[Any, Any]]
CASES: dict[str, Callable[[], Weights]] = {}


def case(function: Callable[[], Weights]) -> Callable[[], Weights]:
    CASES[function.__name__] = function
    return function


def _classifier(first: Any, rate_or_optimizer: Any, jit: Any) -> Any:
    keras.utils.set_random_seed(3)
    inputs = keras.Input(first[0])
    hidden = inputs
    for layer in first[1]:
        hidden = layer(hidden)
    hidden = keras.layers.Dense(32, activation="tanh")(hidden)
    model = keras.Model(inputs, keras.layers.Dense(2, dtype="float32")(hidden))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(rate_or_optimizer, loss, metrics=["accuracy"], jit_compile=jit)
    return model


def _dense(optimizer: Any, jit: Any) -> Weights:
    model = _classifier(((24,), []), optimizer, jit)
    model.fit(ROWS, LABELS, batch_size=BATCH, epochs=3, verbose=0)
    return [np.asarray(weight) for weight in model.get_weights()]


def _embedding(optimizer: Any, jit: Any) -> Weights:
    layers = [keras.layers.Embedding(60, 8), keras.layers.Flatten()]
    model = _classifier(((6,), layers), optimizer, jit)
    model.fit(WORDS, LABELS, batch_size=BATCH, epochs=3, verbose=0)
    return [np.asarray(weight) for weight in model.get_weights()]


@case
def fit_sgd() -> Weights:
    return _dense(keras.optimizers.SGD(0.1), False)


@case
def fit_adam() -> Weights:
    return _dense(keras.optimizers.Adam(0.01), False)


@case
def fit_compiled() -> Weights:
    return _dense(keras.optimizers.Adam(0.01), True)


@case
def fit_auto() -> Weights:
    return _dense(keras.optimizers.SGD(0.1, momentum=0.9), "auto")


@case
def embedding() -> Weights:
    return _embedding(keras.optimizers.Adam(0.01), False)


@case
def embedding_compiled() -> Weights:
    return _embedding(keras.optimizers.SGD(0.1), True)


@case
def convolution() -> Weights:
    layers = [
        keras.layers.Reshape((4, 6, 1)),
        keras.layers.Conv2D(8, 3, activation="relu"),
        keras.layers.Flatten(),
    ]
    model = _classifier(((24,), layers), keras.optimizers.SGD(0.1), False)
    model.fit(ROWS, LABELS, batch_size=BATCH, epochs=2, verbose=0)
    return [np.asarray(weight) for weight in model.get_weights()]


@case
def mixed_precision() -> Weights:
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        return _dense(keras.optimizers.SGD(0.1), "auto")
    finally:
        keras.mixed_precision.set_global_policy("float32")


@case
def own_loop() -> Weights:
    keras.utils.set_random_seed(4)
    model = keras.Sequential([keras.Input((24,)), keras.layers.Dense(16), keras.layers.Dense(2)])
    optimizer = keras.optimizers.Adam(0.01)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        gradients, _ = tf.clip_by_global_norm(gradients, 0.5)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    data = tf.data.Dataset.from_tensor_slices((ROWS, LABELS)).batch(BATCH).repeat(3)
    for x, y in data:
        step(x, y)
    return [np.asarray(weight) for weight in model.get_weights()]


def _part(rows: Any) -> Any:
    """This rank's rows, because TensorFlow does not divide this data; all rows in one process."""
    try:
        from tensorflow import mpi
    except ImportError:
        return rows
    return rows[mpi.rank() :: mpi.size()]


@case
def raw_ops() -> Weights:
    dense = tf.Variable(np.ones((24,), np.float32))
    table = tf.Variable(np.ones((60, 4), np.float32))
    slot = tf.Variable(np.zeros((60, 4), np.float32) + 0.1)
    for step in range(3):
        rows = _part(ROWS[step * 8 : step * 8 + 8])
        words = _part(WORDS[step * 8 : step * 8 + 8])[:, 0]
        tf.raw_ops.ResourceApplyGradientDescent(
            var=dense.handle, alpha=0.1, delta=tf.constant(rows.mean(axis=0))
        )
        tf.raw_ops.ResourceSparseApplyAdagradV2(
            var=table.handle,
            accum=slot.handle,
            lr=0.1,
            epsilon=1e-7,
            grad=tf.constant(rows[:, :4] / len(rows)),
            indices=tf.constant(words),
        )
    return [dense.numpy(), table.numpy(), slot.numpy()]


@case
def session() -> Weights:
    v1 = tf.compat.v1
    found: Weights = []
    for resource in (True, False):
        with tf.Graph().as_default():
            v1.set_random_seed(2)
            x = v1.placeholder(tf.float32, [None, 24])
            words = v1.placeholder(tf.int32, [None, 6])
            w = v1.get_variable(
                "w", initializer=np.full((24, 2), 0.1, np.float32), use_resource=resource
            )
            table = v1.get_variable(
                "t", initializer=np.full((60, 2), 0.2, np.float32), use_resource=resource
            )
            rows = tf.reduce_mean(tf.nn.embedding_lookup(table, words), axis=1)
            loss = tf.reduce_mean(tf.square(tf.matmul(x, w) + rows - 1.0))
            train = v1.train.AdamOptimizer(0.01).minimize(loss)
            with v1.Session() as running:
                running.run(v1.global_variables_initializer())
                for step in range(4):
                    batch = slice(step * BATCH, (step + 1) * BATCH)
                    feed = {x: _part(ROWS[batch]), words: _part(WORDS[batch])}
                    running.run(train, feed)
                found += running.run([w, table])
    return found


def main() -> int:
    tf.config.experimental.enable_tensor_float_32_execution(False)
    out, names = sys.argv[1], sys.argv[2:] or list(CASES)
    rank = 0
    if hasattr(tf, "mpi"):
        rank = tf.mpi.rank()
    results: dict[str, Any] = {}
    failed = 0
    for name in names:
        begin = time.time()
        try:
            weights = CASES[name]()
        except Exception:
            failed += 1
            print(f"rank {rank}: {name} FAILED\n{traceback.format_exc()[-1500:]}", flush=True)
            continue
        results.update({f"{name}/{i}": weight for i, weight in enumerate(weights)})
        if rank == 0:
            print(f"{name}: {time.time() - begin:.1f} s", flush=True)
            np.savez(out, **results)  # after each case, because a lent GPU may be withdrawn
    return failed


if __name__ == "__main__":
    sys.exit(main())
