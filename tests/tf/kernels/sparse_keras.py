"""An embedding in fit, by Keras 3 and tf_keras: prints weights and slots by case.

The same on ranks and as a plain process: fit gives each rank its part of every batch. Ids come more
than once in a batch, but for the adaptive optimizers of Keras 3: on one process these square the
gradients of such a row one by one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tf_keras
from common import encode, result, single_threaded_ops

STEPS, BATCH, ROWS, WIDTH = 5, 12, 40, 4
RANDOM = np.random.default_rng(5)
TWICE = RANDOM.integers(0, 9, size=(STEPS * BATCH, 2))
ONCE = np.concatenate([RANDOM.permutation(ROWS)[: 2 * BATCH] for _ in range(STEPS)]).reshape(-1, 2)
Y = RANDOM.normal(size=(STEPS * BATCH, 1)).astype("f")


def trained(api: Any, make: Callable[[], Any], ids: Any, **options: Any) -> dict[str, Any]:
    api.utils.set_random_seed(9)
    layers = api.layers
    model = api.Sequential(
        [api.Input((2,)), layers.Embedding(ROWS, WIDTH), layers.Flatten(), layers.Dense(1)]
    )
    seen: list[str] = []
    optimizer = make()
    watch(optimizer, seen)
    model.compile(optimizer, "mse", **options)
    history = model.fit(ids, Y, batch_size=BATCH, shuffle=False, verbose=0)
    variables = optimizer.variables
    states = variables() if callable(variables) else variables
    arrays = [np.asarray(value) for value in (*model.get_weights(), *states)]
    values = {f"{n}": encode(array) for n, array in enumerate(arrays) if array.dtype.kind == "f"}
    losses = encode(np.array(history.history["loss"], "f"))
    return {"values": {**values, "loss": losses}, "kinds": sorted(set(seen))}


def watch(optimizer: Any, seen: list[str]) -> None:
    """Notes what kinds of gradients the updates get."""
    sparse = "_resource_apply_sparse_duplicate_indices"
    for name in ("update_step", "_resource_apply_dense", sparse):
        if hasattr(optimizer, name):
            setattr(optimizer, name, noting(getattr(optimizer, name), seen, name))


def noting(update: Any, seen: list[str], name: str) -> Any:
    @functools.wraps(update)
    def noted(gradient: Any, *args: Any, **kwargs: Any) -> Any:
        sparse = isinstance(gradient, tf.IndexedSlices) or name.startswith("_resource_apply_sparse")
        seen.append("sparse" if sparse else "dense")
        return update(gradient, *args, **kwargs)

    return noted


def cases() -> dict[str, Callable[[], dict[str, Any]]]:
    found: dict[str, Callable[[], dict[str, Any]]] = {}
    for name, api, ids in (("keras", keras, ONCE), ("tf_keras", tf_keras, TWICE)):
        optimizers = api.optimizers
        run = functools.partial(trained, api)
        nesterov = functools.partial(optimizers.SGD, 0.1, momentum=0.9, nesterov=True)
        adam = functools.partial(optimizers.Adam, 0.05)
        found[f"{name} Nesterov"] = functools.partial(run, nesterov, TWICE)
        found[f"{name} Adam"] = functools.partial(run, adam, ids)
        found[f"{name} Ftrl"] = functools.partial(run, lambda o=optimizers: o.Ftrl(0.1), ids)
        found[f"{name} eager"] = functools.partial(run, nesterov, TWICE, run_eagerly=True)
        found[f"{name} compiled"] = functools.partial(run, adam, ids, jit_compile=True)
    legacy = tf_keras.optimizers.legacy
    run = functools.partial(trained, tf_keras)
    found |= {
        "keras RMSprop": functools.partial(
            trained, keras, lambda: keras.optimizers.RMSprop(0.02), ONCE
        ),
        "keras Adagrad": functools.partial(
            trained, keras, lambda: keras.optimizers.Adagrad(0.1), ONCE
        ),
        "legacy SGD": functools.partial(run, lambda: legacy.SGD(0.1), TWICE),
        "legacy Adam": functools.partial(run, lambda: legacy.Adam(0.05), TWICE),
        "legacy RMSprop": functools.partial(run, lambda: legacy.RMSprop(0.02), TWICE),
        "legacy Adagrad": functools.partial(run, lambda: legacy.Adagrad(0.1), TWICE),
    }
    return found


def main() -> None:
    single_threaded_ops()
    result({name: case() for name, case in cases().items()})


main()
