"""tf.mpi.gather_batch in a custom loop: prints the weights after some steps.

Takes no arguments. One process and N ranks run the same code on parts of one dataset.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from common import compiles, encode, result, single_threaded_ops

drawn = np.random.default_rng(0)
X = drawn.normal(size=(48, 6)).astype(np.float32)
LABELS = drawn.integers(0, 3, size=48)
START = drawn.normal(size=(6, 4)).astype(np.float32)


def contrastive(embeddings: Any, labels: Any) -> Any:
    """A whole-batch loss: a sum over samples, each of which needs the whole batch."""
    near = tf.nn.log_softmax(tf.matmul(embeddings, embeddings, transpose_b=True))
    same = tf.cast(labels[:, None] == labels[None], tf.float32)
    return -0.01 * tf.reduce_sum(same * near)


def train(batch: int, wrap: Callable[[Any], Any], samples: int = 48) -> dict[str, Any]:
    weights = tf.Variable(START, name="weights")
    optimizer = tf.keras.optimizers.SGD(0.05)
    optimizer.build([weights])

    def step(x: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            whole = tf.mpi.gather_batch(tf.tanh(x @ weights))
            loss = contrastive(whole, tf.mpi.gather_batch(labels))
        optimizer.apply_gradients([(tape.gradient(loss, weights), weights)])
        return loss

    run = wrap(step)
    losses = []
    dataset = tf.data.Dataset.from_tensor_slices((X[:samples], LABELS[:samples]))
    for x, labels in tf.mpi.shard(dataset.batch(batch, drop_remainder=samples == 48)):
        losses.append(float(run(x, labels)))
    return {"weights": encode(weights.numpy()), "losses": encode(np.array(losses, np.float32))}


def kinds_of_numbers() -> dict[str, Any]:
    """Rows keep their order in every dtype, including half precision and bool."""
    part = next(iter(tf.mpi.shard(tf.data.Dataset.from_tensor_slices(X[:6]).batch(6))))
    found = {}
    for dtype in (tf.float16, tf.float64, tf.int32, tf.bool, tf.uint8):
        value = tf.cast(tf.abs(part) * 3, dtype)
        eager = tf.mpi.gather_batch(value)
        compiled = tf.function(tf.mpi.gather_batch, jit_compile=compiles())(value)
        found[dtype.name] = encode(tf.cast(eager, tf.float32).numpy())
        found[f"{dtype.name} compiled"] = encode(tf.cast(compiled, tf.float32).numpy())
    return found


def exact_in_compiled_code() -> dict[str, Any]:
    """Numbers that float64 does not hold: integers of more than 53 bits, and complex ones."""
    numbers = [2**62 + 1, -(2**62) - 1, -1, 2**53 + 1, 0, 5]
    whole = tf.data.Dataset.from_tensor_slices(tf.constant(numbers, tf.int64)).batch(6)
    part = next(iter(tf.mpi.shard(whole)))
    gather = tf.function(tf.mpi.gather_batch, jit_compile=compiles())
    unsigned = gather(tf.bitcast(part, tf.uint64))
    found: dict[str, Any] = {
        "int64": gather(part).numpy().tolist(),
        "uint64": [number - 2**64 * (number >= 2**63) for number in unsigned.numpy().tolist()],
    }
    for dtype in (tf.complex64, tf.complex128):
        some = gather(tf.cast(part % 7, dtype) * (1 - 2j))
        found[dtype.name] = [[number.real, number.imag] for number in some.numpy().tolist()]
    return {"numbers": numbers, **found}


def complex_gradients() -> dict[str, Any]:
    """A gradient through gathered complex numbers, in eager code and compiled."""
    whole = tf.data.Dataset.from_tensor_slices(X[:6].astype(np.float64)).batch(6)
    part = next(iter(tf.mpi.shard(whole)))

    def gradient(part: Any, factors: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(factors)
            whole = tf.mpi.gather_batch(tf.complex(part * factors, tf.sin(part * factors)))
            loss = tf.abs(tf.reduce_sum(whole**3)) ** 2  # depends on products of samples
        return tape.gradient(loss, factors)

    ways = {"eager": gradient, "compiled": tf.function(gradient, jit_compile=compiles())}
    found = {name: way(part, tf.constant(START[:, 0], tf.float64)) for name, way in ways.items()}
    return {name: encode(tf.mpi.allreduce(one).numpy()) for name, one in found.items()}


def refused() -> dict[str, str]:
    """The errors for a scalar, and for a compiled function without a static shape."""
    said = {}
    unknown = tf.function(
        tf.mpi.gather_batch,
        jit_compile=True,
        input_signature=[tf.TensorSpec([None, 6], tf.float32)],
    )
    for name, call in (
        ("scalar", lambda: tf.mpi.gather_batch(tf.constant(1.0))),
        ("unknown shape", lambda: unknown(tf.constant(X))),
    ):
        try:
            call()
            said[name] = ""
        except (ValueError, NotImplementedError, tf.errors.UnimplementedError) as error:
            said[name] = str(error)
    return said


def main() -> None:
    single_threaded_ops()
    result(
        {
            "eager": train(12, lambda step: step),
            "function": train(12, tf.function),
            "compiled": train(12, lambda step: tf.function(step, jit_compile=compiles())),
            "uneven": train(11, lambda step: tf.function(step, reduce_retracing=True), 43),
            "numbers": kinds_of_numbers(),
            "exact": exact_in_compiled_code(),
            "complex": complex_gradients(),
            "refused": refused(),
        }
    )


if __name__ == "__main__":
    main()
