"""Variants of a program: Keras 3 and tf_keras, with and without XLA, even and uneven batches.

Each is trained for 50 steps from the same seed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import keras as keras_3
import numpy as np

EVEN, UNEVEN = (60, 12), (53, 13)  # rows, batch size: the last batch of UNEVEN has one row
STEPS = 5  # per epoch, in either case
ALL = (
    ("keras", "graph", EVEN),
    ("keras", "graph", UNEVEN),
    ("keras", "jit", UNEVEN),
    ("tf_keras", "graph", UNEVEN),
    ("tf_keras", "jit", EVEN),
)
NOT_COMPILED = tuple(one for one in ALL if one[1] != "jit")
EAGER = (("keras", "eager", UNEVEN), ("tf_keras", "eager", UNEVEN))


def of(
    make: Callable[[Any], Any],
    data: Callable[[int], tuple[Any, ...]],
    variants: Sequence[Any] = ALL,
    *,
    steps: int = 50,
    seed: int = 1,
    after: Callable[[Any, Any], Any] | None = None,
) -> dict[str, Any]:
    """The results by variant.

    Args:
      make: returns a model from keras or tf_keras; it has `compile_for` or is compiled with `adam`.
      data: returns the arrays for fit, given the number of rows.
      variants: the names to run, limited to those with the words of VARIANTS in the environment.
      after: returns further values to compare, given the model and its input.
    """
    words = os.environ.get("VARIANTS", "").split()
    found = {}
    for package, kind, (rows, batch) in variants:
        name = f"{package} {kind} {rows}/{batch}"
        if not set(words) <= set(name.split()):
            continue
        keras = _package(package)
        keras.backend.clear_session()
        keras.utils.set_random_seed(seed)
        model = make(keras)
        how = {"jit_compile": kind == "jit", "run_eagerly": kind == "eager"}
        if hasattr(model, "compile_for"):
            model.compile_for(keras, **how)
        else:
            loss = getattr(model, "wanted_loss", "mse")
            model.compile(adam(keras), loss, metrics=["mae"], **how)
        x, *y = (np.asarray(one, "float32") for one in data(rows))
        kept = {"batch_size": batch, "verbose": 0, "shuffle": False}
        history = model.fit(x, *y, epochs=steps // STEPS, **kept).history
        one: dict[str, Any] = {"history": history, "weights": model.get_weights()}
        if y:
            one["evaluated"] = model.evaluate(x, *y, batch_size=batch, verbose=0)
            one["predicted"] = model.predict(x, batch_size=batch, verbose=0)
        if after:
            one["after"] = after(model, x)
        found[name] = one
    return found


def adam(keras: Any) -> Any:
    """Adam with an epsilon that leaves weights unchanged whose gradient is only rounding errors: a
    shift before batch norm, or an attention's key bias. Adam's default would make full-sized steps
    of them."""
    return keras.optimizers.Adam(1e-3, epsilon=1e-2)


def _package(name: str) -> Any:
    if name == "keras":
        return keras_3
    import tf_keras

    return tf_keras


def images(rows: int, size: int = 8, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(rows).uniform(size=(rows, size, size, channels))


def labels(x: np.ndarray) -> np.ndarray:
    """A label for each sample, computed from its contents."""
    flat = x.reshape(len(x), -1)
    return (np.sin(7 * flat.mean(1, keepdims=True)) + flat[:, :1]).astype("float32")
