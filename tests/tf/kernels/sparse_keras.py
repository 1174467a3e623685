"""An embedding trained by Keras 3 and tf_keras: prints weights and slots by case.

Runs unchanged on ranks and as a plain process: fit gives each rank its part of every batch, and the
cases `by batches` and `whole` give each rank all of it. Batches contain duplicate ids: Keras 3's
adaptive optimizers square the gradients of such rows one by one, and a norm is that of the rows
before they are merged.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tf_keras
from common import compiles, encode, result, single_threaded_ops

STEPS, BATCH, ROWS, WIDTH = 5, 12, 40, 4
RANDOM = np.random.default_rng(5)
IDS = RANDOM.integers(0, 9, size=(STEPS * BATCH, 2))
Y = RANDOM.normal(size=(STEPS * BATCH, 1)).astype("f")


def trained(api: Any, make: Callable[[], Any], data: str = "fit", **options: Any) -> dict[str, Any]:
    """data: "by batches", with train_on_batch; "whole": with a model that cannot be split."""
    api.utils.set_random_seed(9)
    layers = api.layers

    class Centred(api.layers.Layer):
        def call(self, x: Any) -> Any:
            return x - tf.reduce_mean(x, axis=0, keepdims=True)

    model = api.Sequential([api.Input((2,)), layers.Embedding(ROWS, WIDTH), layers.Flatten()])
    # Centred makes a bias's gradient rounding noise, which Adam turns into whole steps.
    model.add(layers.Dense(1, use_bias=data != "whole"))
    if data == "whole":
        model.add(Centred())
    seen: list[str] = []
    optimizer = make()
    watch(optimizer, seen)
    model.compile(optimizer, "mse", **options)
    if data == "by batches":
        starts = range(0, len(IDS), BATCH)
        found = [model.train_on_batch(IDS[n : n + BATCH], Y[n : n + BATCH]) for n in starts]
    else:
        found = model.fit(IDS, Y, batch_size=BATCH, shuffle=False, verbose=0).history["loss"]
    variables = optimizer.variables
    states = variables() if callable(variables) else variables
    arrays = [np.asarray(value) for value in (*model.get_weights(), *states)]
    values = {f"{n}": encode(array) for n, array in enumerate(arrays) if array.dtype.kind == "f"}
    losses = encode(np.array(found, "f"))
    return {"values": {**values, "loss": losses}, "kinds": sorted(set(seen))}


def watch(optimizer: Any, seen: list[str]) -> None:
    """Records the kinds of gradients that the updates get."""
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


def keras_cases() -> dict[str, Callable[[], dict[str, Any]]]:
    """The most relevant cases: optimizers that square rows or take their norm."""
    adam = functools.partial(keras.optimizers.Adam, 0.05)
    clipped = functools.partial(keras.optimizers.Adam, 0.05, global_clipnorm=0.3)
    nesterov = functools.partial(keras.optimizers.SGD, 0.1, momentum=0.9, nesterov=True)
    run = functools.partial(trained, keras)
    return {
        "Nesterov": functools.partial(run, nesterov),
        "Adam": functools.partial(run, adam),
        "Adam eager": functools.partial(run, adam, run_eagerly=True),
        "Adam compiled": functools.partial(run, adam, jit_compile=compiles()),
        "clipped": functools.partial(run, clipped),
        "clipped compiled": functools.partial(run, clipped, jit_compile=compiles()),
        "Adam by batches": functools.partial(run, adam, "by batches"),
        "clipped whole": functools.partial(run, clipped, "whole"),
        "Adam whole compiled": functools.partial(run, adam, "whole", jit_compile=compiles()),
    }


def alike_cases(run: Any, make: functools.partial[Any]) -> dict[str, Callable[[], dict[str, Any]]]:
    """Cases in which all ranks compute the same."""
    modes: dict[str, dict[str, Any]] = {
        "": {},
        " eager": {"run_eagerly": True},
        " compiled": {"jit_compile": compiles()},
    }
    return {
        f"{make.func.__name__} {data}{mode}": functools.partial(run, make, data, **options)
        for data in ("by batches", "whole")
        for mode, options in modes.items()
    }


# One case of each way to run, of parts and of whole batches, and a norm of rows.
QUICK = ("Nesterov", "Adam eager", "clipped compiled", "Adam by batches")


def more_keras_cases() -> dict[str, Callable[[], dict[str, Any]]]:
    found: dict[str, Callable[[], dict[str, Any]]] = {}
    for name in ("Adadelta", "Adagrad", "Adamax", "AdamW", "Ftrl", "Lion", "Nadam", "RMSprop"):
        make = functools.partial(getattr(keras.optimizers, name), 0.02)
        found[name] = functools.partial(trained, keras, make)
    for kind in (keras.optimizers.SGD, keras.optimizers.Adam):
        for name, clip in (("clipnorm", 0.1), ("clipvalue", 0.01), ("global_clipnorm", 0.3)):
            make = functools.partial(kind, 0.05, **{name: clip})
            found[f"{kind.__name__} clipped by {name}"] = functools.partial(trained, keras, make)
    adam = functools.partial(keras.optimizers.Adam, 0.05)
    return found | alike_cases(functools.partial(trained, keras), adam)


def tf_keras_cases() -> dict[str, Callable[[], dict[str, Any]]]:
    run = functools.partial(trained, tf_keras)
    optimizers, legacy = tf_keras.optimizers, tf_keras.optimizers.legacy
    adam = functools.partial(optimizers.Adam, 0.05)
    return {
        "Adam": functools.partial(run, adam),
        "Ftrl": functools.partial(run, lambda: optimizers.Ftrl(0.1)),
        "Adam compiled": functools.partial(run, adam, jit_compile=compiles()),
        "Nesterov eager": functools.partial(
            run, lambda: optimizers.SGD(0.1, momentum=0.9, nesterov=True), run_eagerly=True
        ),
        "clipped": functools.partial(run, lambda: optimizers.SGD(0.5, global_clipnorm=0.3)),
        "legacy SGD": functools.partial(run, lambda: legacy.SGD(0.1)),
        "legacy Adam": functools.partial(run, lambda: legacy.Adam(0.05)),
        "legacy RMSprop": functools.partial(run, lambda: legacy.RMSprop(0.02)),
        "legacy Adagrad": functools.partial(run, lambda: legacy.Adagrad(0.1)),
        "legacy clipped": functools.partial(run, lambda: legacy.SGD(0.5, clipnorm=0.1)),
        **alike_cases(run, functools.partial(optimizers.RMSprop, 0.02, clipnorm=0.1)),
    }


def main() -> None:
    single_threaded_ops()
    kinds = {"keras": keras_cases, "more": more_keras_cases, "tf_keras": tf_keras_cases}
    kinds["quick"] = lambda: {name: keras_cases()[name] for name in QUICK}
    result({name: case() for name, case in kinds[sys.argv[1]]().items()})


main()
