"""fit with every kind of Keras optimizer on shuffled arrays, 50 steps: prints the weights.

Arguments: keras, tf_keras or tf_keras-legacy; then names of cases, default all. 3 ranks do not
divide the batches of 20 evenly, and the last batch of an epoch has 10.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from common import compiles, encode, keras_of, result, single_threaded_ops

FLAVOUR, NAMES = sys.argv[1], sys.argv[2:]
keras: Any = keras_of([FLAVOUR.partition("-")[0]])
SAMPLES, BATCH, EPOCHS = 490, 20, 2  # 25 steps per epoch
CLIP = 0.05  # below the initial norms of the gradients, so that clipping matters


def modern(optimizers: Any) -> dict[str, Callable[[], Any]]:
    """Keras 3, and tf_keras's current optimizers."""
    cases = {
        "sgd momentum": lambda: optimizers.SGD(0.02, momentum=0.9, nesterov=True),
        "adam": lambda: optimizers.Adam(0.01),
        "adamw global_clipnorm ema": lambda: optimizers.AdamW(
            0.01, weight_decay=0.01, global_clipnorm=CLIP, use_ema=True, ema_momentum=0.9
        ),
        "rmsprop": lambda: optimizers.RMSprop(0.005, momentum=0.5),
        "adagrad": lambda: optimizers.Adagrad(0.05),
        "lion": lambda: optimizers.Lion(0.001),
    }
    if FLAVOUR == "keras":
        cases["accumulation clipnorm"] = lambda: optimizers.SGD(
            0.2, momentum=0.9, clipnorm=CLIP, gradient_accumulation_steps=3
        )
        cases["loss scale"] = lambda: optimizers.LossScaleOptimizer(
            optimizers.Adam(0.01), initial_scale=2.0**120, dynamic_growth_steps=20
        )
    else:
        cases["clipnorm"] = lambda: optimizers.SGD(0.2, momentum=0.9, clipnorm=CLIP)
        cases["loss scale"] = lambda: keras.mixed_precision.LossScaleOptimizer(
            optimizers.Adam(0.01), initial_scale=2.0**120, dynamic_growth_steps=20
        )
    return cases


def legacy(optimizers: Any) -> dict[str, Callable[[], Any]]:
    """tf_keras's legacy optimizers: some have Apply ops, some assign."""
    return {
        "sgd momentum": lambda: optimizers.SGD(0.02, momentum=0.9, nesterov=True),
        "adam": lambda: optimizers.Adam(0.01),
        "adam global_clipnorm": lambda: optimizers.Adam(0.01, global_clipnorm=CLIP),
        "rmsprop": lambda: optimizers.RMSprop(0.005, momentum=0.5),
        "adagrad": lambda: optimizers.Adagrad(0.05),
        "nadam": lambda: optimizers.Nadam(0.01),
        "clipnorm": lambda: optimizers.SGD(0.2, momentum=0.9, clipnorm=CLIP),
        "loss scale": lambda: keras.mixed_precision.LossScaleOptimizer(
            optimizers.Adam(0.01), initial_scale=2.0**120, dynamic_growth_steps=20
        ),
    }


def data() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(7)
    x = random.normal(size=(SAMPLES, 6)).astype(np.float32)
    return x, np.tanh(x @ random.normal(size=(6, 3))).astype(np.float32)


def train(make: Callable[[], Any], jit: bool) -> dict[str, Any]:
    keras.backend.clear_session()
    keras.utils.set_random_seed(11)
    layers = keras.layers
    model = keras.Sequential(
        [layers.Input((6,)), layers.Dense(8, activation="tanh"), layers.Dense(3)]
    )
    optimizer = make()
    model.compile(optimizer, loss="mse", metrics=["mae"], jit_compile=jit and compiles())
    x, y = data()
    history = model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, shuffle=True, verbose=0)
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return {
        "weights": [encode(w) for w in model.get_weights()],
        "loss": history.history["loss"],
        "mae": history.history["mae"],
        "iterations": int(inner.iterations.numpy()),
    }


def main() -> None:
    single_threaded_ops()
    if os.environ.get("TEST_BREAK_AVERAGE"):  # the control: averages nothing
        from tensorflow.mpi._src.average import averaging, compiled
        from tensorflow.mpi._src.keras import fit

        averaging.average = lambda tensors, *_: list(tensors)
        compiled.average_in_one_call = averaging.average
        fit._check_averaged = fit.synchronize_states = lambda *_: None
    cases = (
        legacy(keras.optimizers.legacy) if FLAVOUR.endswith("legacy") else modern(keras.optimizers)
    )
    found = {}
    for name, make in cases.items():
        for jit in (False, True):
            full = f"{name}{' jit' if jit else ''}"
            if not NAMES or full in NAMES:
                found[full] = train(make, jit)
    found["ranks"] = tf.mpi.size()
    result(found)


main()
