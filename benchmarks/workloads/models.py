"""The models, each as plain TensorFlow operations on a list of variables and as a Keras model.

A forward function takes the values of the variables, in the order of `parameters`, and a batch of
inputs. It returns float32 logits [batch, classes].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

LEARNING_RATE = 1e-3
BATCHES = 16  # number of different batches that a loop cycles through


@dataclass(frozen=True)
class Parameter:
    """A trained float32 variable. Its initial values are normally distributed with this standard
    deviation; 0: zeros."""

    name: str
    shape: tuple[int, ...]
    deviation: float


@dataclass(frozen=True)
class Workload:
    """A model, its batch size per rank, and the shape of its random data."""

    letter: str
    batch: int
    classes: int
    parameters: Callable[[int], list[Parameter]]  # argument: rows of the table
    forward: Callable[[Sequence[Any], Any], Any]
    keras: Callable[[int], Any]
    inputs: Callable[[np.random.Generator, int, int], np.ndarray]  # generator, samples, rows

    def data(self, rank: int, samples: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and int32 labels [samples]; different on every rank, the same in every run."""
        generator = np.random.default_rng([rank, samples])
        labels = generator.integers(self.classes, size=samples, dtype=np.int32)
        return self.inputs(generator, samples, rows), labels


def _dense(name: str, rows: int, columns: int) -> list[Parameter]:
    return [
        Parameter(f"{name}/w", (rows, columns), (2.0 / rows) ** 0.5),
        Parameter(f"{name}/b", (columns,), 0.0),
    ]


def _stack(sizes: Sequence[int], prefix: str = "dense") -> list[Parameter]:
    pairs = zip(sizes, sizes[1:])
    return [p for i, pair in enumerate(pairs) for p in _dense(f"{prefix}{i}", *pair)]


def _mlp(values: Sequence[Any], x: Any) -> Any:
    """Dense layers with relu between them."""
    import tensorflow as tf

    for index in range(0, len(values), 2):
        x = tf.matmul(x, values[index]) + values[index + 1]
        if index + 2 < len(values):
            x = tf.nn.relu(x)
    return x


def _keras_stack(sizes: Sequence[int]) -> list[Any]:
    import keras

    hidden = [
        keras.layers.Dense(size, activation="relu", kernel_initializer="he_normal")
        for size in sizes[1:-1]
    ]
    return [*hidden, keras.layers.Dense(sizes[-1])]


def _keras_mlp(sizes: Sequence[int]) -> Any:
    import keras

    return keras.Sequential([keras.Input((sizes[0],)), *_keras_stack(sizes)])


def _dense_workload(letter: str, batch: int, sizes: Sequence[int]) -> Workload:
    return Workload(
        letter=letter,
        batch=batch,
        classes=sizes[-1],
        parameters=lambda rows: _stack(sizes),
        forward=_mlp,
        keras=lambda rows: _keras_mlp(sizes),
        inputs=lambda generator, samples, rows: generator.standard_normal(
            (samples, sizes[0]), dtype=np.float32
        ),
    )


def _cnn_parameters(rows: int) -> list[Parameter]:
    return [
        Parameter("conv1/w", (5, 5, 1, 32), 0.2),
        Parameter("conv1/b", (32,), 0.0),
        Parameter("conv2/w", (5, 5, 32, 64), 0.05),
        Parameter("conv2/b", (64,), 0.0),
        *_stack([7 * 7 * 64, 512, 10]),
    ]


def _cnn(values: Sequence[Any], x: Any) -> Any:
    import tensorflow as tf

    for index in (0, 2):
        x = tf.nn.conv2d(x, values[index], strides=1, padding="SAME") + values[index + 1]
        x = tf.nn.max_pool2d(tf.nn.relu(x), 2, 2, "VALID")
    return _mlp(values[4:], tf.reshape(x, [-1, 7 * 7 * 64]))


def _keras_cnn(rows: int) -> Any:
    from keras import Input, Sequential, layers

    return Sequential(
        [
            Input((28, 28, 1)),
            layers.Conv2D(32, 5, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 5, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            *_keras_stack([7 * 7 * 64, 512, 10]),
        ]
    )


WIDTH, IDS = 64, 8  # row width of the table; ids per sample: 8 x 256 = 2,048 rows a step


def _embedding(values: Sequence[Any], ids: Any) -> Any:
    """tf.gather's gradient is IndexedSlices, with only the rows that the batch used."""
    import tensorflow as tf

    rows = tf.gather(values[0], ids)
    return _mlp(values[1:], tf.reshape(rows, [-1, WIDTH * IDS]))


def _keras_embedding(rows: int) -> Any:
    from keras import Input, Sequential, layers

    return Sequential(
        [
            Input((IDS,), dtype="int32"),
            layers.Embedding(rows, WIDTH),
            layers.Flatten(),
            *_keras_stack([WIDTH * IDS, 128, 10]),
        ]
    )


WORKLOADS = {
    "mlp": _dense_workload("a", 64, [784, 2048, 2048, 10]),
    "cnn": Workload(
        letter="b",
        batch=64,
        classes=10,
        parameters=_cnn_parameters,
        forward=_cnn,
        keras=_keras_cnn,
        inputs=lambda generator, samples, rows: generator.standard_normal(
            (samples, 28, 28, 1), dtype=np.float32
        ),
    ),
    "dense100mb": _dense_workload("c", 8, [2048] * 7),
    "layers200": _dense_workload("d", 32, [32] * 201),
    "embedding": Workload(
        letter="e",
        batch=256,
        classes=10,
        parameters=lambda rows: [
            Parameter("table", (rows, WIDTH), 0.05),
            *_stack([WIDTH * IDS, 128, 10]),
        ],
        forward=_embedding,
        keras=_keras_embedding,
        inputs=lambda generator, samples, rows: generator.integers(
            rows, size=(samples, IDS), dtype=np.int32
        ),
    ),
    "tiny": _dense_workload("t", 4, [8, 8, 4]),  # for tests of this suite
}
