"""Typical models, trained by fit and by custom loops: prints the results.

Arguments: names of cases, default all. One process and N ranks run the same code; the loops divide
their dataset with tf.mpi.shard, which returns all of it to one process.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from common import compiles, encode, result, single_threaded_ops

layers = keras.layers
SAMPLES, BATCH = 96, 24


def data(seed: int = 3) -> tuple[np.ndarray, np.ndarray]:
    drawn = np.random.default_rng(seed)
    x = drawn.normal(size=(SAMPLES, 6)).astype(np.float32)
    return x, np.tanh(x @ drawn.normal(size=(6, 2))).astype(np.float32)


def weights(*models: Any) -> list[Any]:
    return [encode(w) for model in models for w in model.get_weights()]


def functional() -> dict[str, Any]:
    """Two inputs, two outputs, weighted losses and samples, an embedding with sparse gradients."""
    numbers, words = layers.Input((6,), name="numbers"), layers.Input((3,), dtype="int32")
    embedded = layers.Flatten()(layers.Embedding(10, 4, name="embedding")(words))
    hidden = layers.Dense(8, activation="relu")(layers.Concatenate()([numbers, embedded]))
    outputs = [layers.Dense(2, name="a")(hidden), layers.Dense(1, name="b")(hidden)]
    model = keras.Model([numbers, words], outputs)
    model.compile(
        keras.optimizers.SGD(0.05, momentum=0.9), loss=["mse", "mae"], loss_weights=[1.0, 0.3]
    )
    x, y = data()
    ids = np.random.default_rng(5).integers(0, 10, (SAMPLES, 3)).astype(np.int32)
    weight = np.linspace(0.2, 2, SAMPLES).astype(np.float32)
    history = model.fit(
        [x, ids],
        [y, y[:, :1]],
        sample_weight=[weight, weight],
        batch_size=BATCH,
        epochs=4,
        verbose=0,
    )
    return {"weights": weights(model), "losses": history.history}


class Block(keras.Model):
    """A subclassed model, which has no weights before its first batch."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = layers.Dense(8, activation="tanh")
        self.out = layers.Dense(2)

    def call(self, x: Any) -> Any:
        return self.out(self.hidden(x))


def subclassed() -> dict[str, Any]:
    model = Block()
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss="mse", steps_per_execution=2)
    x, y = data()
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(SAMPLES, seed=1).batch(BATCH)
    history = model.fit(dataset, epochs=4, verbose=0)
    return {"weights": weights(model), "losses": history.history}


def eager() -> dict[str, Any]:
    model = Block()
    model.compile(keras.optimizers.Adam(0.01), loss="mse", run_eagerly=True)
    x, y = data()
    history = model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0)
    return {"weights": weights(model), "losses": history.history}


class Gan(keras.Model):
    """Two optimizers in a custom train_step; its noise is part of the data."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = keras.Sequential([layers.Input((6,)), layers.Dense(2)])
        self.critic = keras.Sequential(
            [layers.Input((2,)), layers.Dense(4, activation="tanh"), layers.Dense(1)]
        )

    def compile(self, generator_optimizer: Any, critic_optimizer: Any) -> None:
        super().compile()
        self.generator_optimizer, self.critic_optimizer = generator_optimizer, critic_optimizer
        self.loss_metric = keras.metrics.Mean(name="critic_loss")

    @property
    def metrics(self) -> list[Any]:
        return [self.loss_metric]

    def train_step(self, batch: Any) -> dict[str, Any]:
        noise, real = batch
        with tf.GradientTape() as tape:
            fake, true = self.critic(self.generator(noise)), self.critic(real)
            loss = tf.reduce_mean(tf.square(fake + 1)) + tf.reduce_mean(tf.square(true - 1))
        variables = self.critic.trainable_variables
        self.critic_optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        with tf.GradientTape() as tape:
            cheat = tf.reduce_mean(tf.square(self.critic(self.generator(noise)) - 1))
        variables = self.generator.trainable_variables
        self.generator_optimizer.apply_gradients(zip(tape.gradient(cheat, variables), variables))
        self.loss_metric.update_state(loss, sample_weight=tf.shape(noise)[0])
        return {"critic_loss": self.loss_metric.result()}


def gan(jit: bool = False) -> dict[str, Any]:
    model = Gan()
    model.compile(keras.optimizers.Adam(0.01), keras.optimizers.RMSprop(0.01))
    model.jit_compile = jit and compiles()
    x, y = data()
    history = model.fit(x, y, batch_size=BATCH, epochs=4, verbose=0)
    return {"weights": weights(model.generator, model.critic), "losses": history.history}


def transfer() -> dict[str, Any]:
    """A frozen base with batch norm; part of it is then unfrozen and trained at another rate."""
    base = keras.Sequential(
        [layers.Input((6,)), layers.Dense(8, activation="relu"), layers.BatchNormalization()]
    )
    base.trainable = False
    inputs = layers.Input((6,))
    model = keras.Model(inputs, layers.Dense(2)(base(inputs, training=False)))
    model.compile(keras.optimizers.Adam(0.01), loss="mse")
    x, y = data()
    first = model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0)
    base.layers[0].trainable = True
    model.compile(keras.optimizers.Adam(0.001), loss="mse")
    second = model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0)
    return {
        "weights": weights(model),
        "losses": {"frozen": first.history["loss"], "thawed": second.history["loss"]},
    }


def mixed() -> dict[str, Any]:
    """float16; one sample overflows on one rank, and all ranks skip that step."""
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        model = keras.Sequential(
            [layers.Input((6,)), layers.Dense(8), layers.Dense(2, dtype="float32")]
        )
        # A small loss, so that only that sample overflows, whatever part of a batch it is in.
        model.compile(keras.optimizers.SGD(0.5), loss="mse", loss_weights=0.01)
        x, y = data()
        x[31] = 6e4
        history = model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0, shuffle=False)
        optimizer = model.optimizer
        return {
            "half weights": weights(model),
            "scale": float(optimizer.dynamic_scale.numpy()),
            "iterations": int(optimizer.iterations.numpy()),
            "finite losses": [bool(np.isfinite(v)) for v in history.history["loss"]],
        }
    finally:
        keras.mixed_precision.set_global_policy("float32")


def loop(mode: str) -> dict[str, Any]:
    """A custom loop."""
    model = keras.Sequential(
        [layers.Input((6,)), layers.Dense(8, activation="tanh"), layers.Dense(2)]
    )
    optimizer = keras.optimizers.AdamW(0.01, clipnorm=0.1)
    x, y = data()
    dataset = tf.mpi.shard(tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH))

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss

    if mode != "eager":
        step = tf.function(step, jit_compile=mode == "jit" and compiles())
    for _ in range(4):
        for batch in dataset:
            step(*batch)
    return {"weights": weights(model)}


CASES = {
    # First: an eager model created after the first tape computes its first gradient from its own
    # values (docs/semantics.md, One starting state).
    "loop eager": lambda: loop("eager"),
    "functional": functional,
    "subclassed": subclassed,
    "eager": eager,
    "gan": gan,
    "gan jit": lambda: gan(jit=True),
    "transfer": transfer,
    "mixed": mixed,
    "loop function": lambda: loop("function"),
    "loop jit": lambda: loop("jit"),
}


def main() -> None:
    single_threaded_ops()
    found = {}
    for name in sys.argv[1:] or CASES:
        keras.backend.clear_session()
        keras.utils.set_random_seed(11)
        # Keras draws the seeds of initializers from here. Ranks start with different weights, and
        # rank 0's, which equal those of the one process, must be used.
        random.seed(11 + tf.mpi.rank())
        found[name] = CASES[name]()
    result(found)


main()
