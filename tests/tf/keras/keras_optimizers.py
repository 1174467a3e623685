"""Direct calls of Keras optimizers: every entry point, with gradients that differ by rank.

Arguments: keras or tf_keras; then names of cases, default all. Prints by case the variables after
two steps, and the number of averaged gradients. One process computes the mean itself.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from common import compiles, encode, result

FLAVOUR = sys.argv[1]
if FLAVOUR == "keras":
    import keras
else:
    import tf_keras as keras

RANK, SIZE, RANKS = tf.mpi.rank(), tf.mpi.size(), int(sys.argv[2])
optimizers: Any = keras.optimizers


def variable(values: list[float]) -> Any:
    initial = np.array(values, np.float32)
    return keras.Variable(initial) if FLAVOUR == "keras" else tf.Variable(initial)


def gradient(step: int, scale: float = 1.0, rows: int = 3) -> Any:
    """This rank's gradient; one process has the mean of all."""

    def of(rank: int) -> np.ndarray:
        drawn = np.random.default_rng((step, rank, int(scale * 10)))
        return (scale * drawn.normal(size=rows)).astype(np.float32)

    if SIZE > 1:
        return tf.constant(of(RANK))
    return tf.constant(
        np.mean([of(rank) for rank in range(RANKS)], axis=0, dtype=np.float64), "float32"
    )


def pairs(step: int, trained: list[Any]) -> list[Any]:
    return [(gradient(step, 1.0 + i), v) for i, v in enumerate(trained)]


def fresh(count: int = 2) -> list[Any]:
    return [variable([1.0, 2.0, 3.0]) for _ in range(count)]


def values(*trained: Any) -> list[Any]:
    return [encode(v.numpy()) for v in trained]


def plain(make: Callable[[], Any], function: bool = False, jit: bool = False) -> Any:
    """Two steps of apply_gradients on two variables."""
    optimizer, trained = make(), fresh()
    if hasattr(optimizer, "build"):
        optimizer.build(trained)
    gradients = [[g for g, _ in pairs(step, trained)] for step in (0, 1)]

    def update(grads: list[Any]) -> None:
        optimizer.apply_gradients(zip(grads, trained))

    run = tf.function(update, jit_compile=jit and compiles()) if function else update
    for grads in gradients:
        run(grads)
    return values(*trained)


SGD: Any = optimizers.SGD


class OverridesApplyGradients(SGD):
    """Also calls the base class's method: only one average."""

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        doubled = [(2 * g, v) for g, v in grads_and_vars]
        return super().apply_gradients(doubled, *args, **kwargs)


class NeverCallsBase(SGD):
    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        for g, v in grads_and_vars:
            v.assign(v - 0.1 * g)


class OverridesUpdateStep(SGD):
    def update_step(self, gradient: Any, variable: Any, learning_rate: Any = 0.1) -> None:
        variable.assign(variable - 0.1 * tf.sign(gradient))


def some_none() -> Any:
    """A variable without a gradient, and a plain list of another dtype."""
    optimizer, trained = optimizers.SGD(0.1), fresh(3)
    for step in (0, 1):
        optimizer.apply_gradients([*pairs(step, trained[:2]), (None, trained[2])])
    return values(*trained)


def large() -> Any:
    """Gradients large enough for separate operations, and a small one: prints their sums."""
    trained = [variable([1.0, 2.0, 3.0]), *(variable([0.5] * 600_000) for _ in range(2))]
    optimizer = optimizers.SGD(0.1)
    step = tf.function(lambda gradients: optimizer.apply_gradients(zip(gradients, trained)))
    for seed in (0, 1):
        step([gradient(seed, 1.0 + i, int(np.size(v))) for i, v in enumerate(trained)])
    every = [np.asarray(v.numpy(), np.float64) for v in trained]
    return [encode(np.array([np.mean(v), np.mean(v**2), v[0], v[-1]])) for v in every]


def two_of_a_kind() -> Any:
    """Two optimizers of one class on identical variables, updated in another order on each rank."""
    first, second = optimizers.SGD(0.1), optimizers.SGD(0.2)
    one, two = fresh(1), fresh(1)
    first.apply_gradients(pairs(0, one))
    second.apply_gradients(pairs(1, two))

    @tf.function
    def both(a: Any, b: Any) -> None:
        first.apply_gradients([(a, one[0])])
        second.apply_gradients([(b, two[0])])

    both(gradient(2), gradient(3))
    return values(*one, *two)


def sparse() -> Any:
    """Rows of an embedding: some differ by rank, and one is common to all.

    Not for Adam in Keras 3, which squares the gradients of a repeated row one by one.
    """
    optimizer = optimizers.SGD(0.1, momentum=0.9) if FLAVOUR == "keras" else optimizers.Adam(0.1)
    table = variable([1.0, 2.0, 3.0, 4.0])

    def slices(rank: int, step: int) -> tuple[list[float], list[int]]:
        return [1.0 + rank, 0.5], [(rank + step) % 4, 3]

    for step in (0, 1):
        if SIZE > 1:
            v, i = slices(RANK, step)
        else:
            both = [slices(rank, step) for rank in range(RANKS)]
            v = [value / RANKS for part, _ in both for value in part]
            i = [index for _, part in both for index in part]
        grad = tf.IndexedSlices(tf.constant(v), tf.constant(i), tf.constant([4]))
        optimizer.apply_gradients([(grad, table)])
    return values(table)


def keras_only() -> dict[str, Callable[[], Any]]:
    def apply() -> Any:
        optimizer, trained = optimizers.Adam(0.1), fresh()
        optimizer.build(trained)
        for step in (0, 1):
            optimizer.apply([g for g, _ in pairs(step, trained)])
        return values(*trained)

    def multi() -> Any:
        trained = fresh()
        choose = {id(trained[0]): optimizers.SGD(0.1), id(trained[1]): optimizers.Adam(0.1)}
        optimizer = optimizers.MultiOptimizer(lambda v: choose[id(v)])
        for step in (0, 1):
            optimizer.apply_gradients(pairs(step, trained))
        return values(*trained)

    def overrides_apply() -> Any:
        class Own(SGD):
            def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
                for delta, trained in zip(grads, trainable_variables):
                    trained.assign(trained - 0.1 * delta)

        trained = fresh()
        Own().apply([g for g, _ in pairs(0, trained)], trained)
        return values(*trained)

    found = {"apply": apply, "multi": multi, "overrides apply": overrides_apply}
    if not hasattr(optimizers, "MultiOptimizer"):  # Keras has it since 3.13
        del found["multi"]
    return found


def tf_keras_only() -> dict[str, Callable[[], Any]]:
    legacy = optimizers.legacy
    names = ["SGD", "Adam", "Adagrad", "Adadelta", "Adamax", "Ftrl", "Nadam", "RMSprop"]
    cases: dict[str, Callable[[], Any]] = {}
    for name in names:
        make = getattr(legacy, name)
        cases[f"legacy {name}"] = functools.partial(plain, functools.partial(make, 0.1))
        cases[f"legacy {name} function"] = functools.partial(
            plain, functools.partial(make, 0.1), function=True
        )
    return cases


def cases() -> dict[str, Callable[[], Any]]:
    found: dict[str, Callable[[], Any]] = {
        "eager": lambda: plain(lambda: optimizers.Adam(0.1)),
        "clip": lambda: plain(lambda: optimizers.SGD(0.1, global_clipnorm=0.5)),
        "clipvalue": lambda: plain(lambda: optimizers.SGD(0.1, clipvalue=0.2)),
        "overrides apply_gradients": lambda: plain(lambda: OverridesApplyGradients(0.1)),
        "never calls base": lambda: plain(lambda: NeverCallsBase(0.1)),
        "overrides update_step": lambda: plain(lambda: OverridesUpdateStep(0.1)),
        "none": some_none,
        "large": large,
        "two of a kind": two_of_a_kind,
        "sparse": sparse,
        "function": lambda: plain(lambda: optimizers.Adam(0.1), True),
        "compiled": lambda: plain(lambda: optimizers.Adam(0.1), True, True),
    }
    return {**found, **(keras_only() if FLAVOUR == "keras" else tf_keras_only())}


def main() -> None:
    from tensorflow.mpi._src.runtime import c_api, hooks

    found = {}
    for name, run in cases().items():
        if sys.argv[3:] and name not in sys.argv[3:]:
            continue
        before = c_api.stats()["gradients"] if hooks.active else 0
        trained = run()
        count = (c_api.stats()["gradients"] if hooks.active else 0) - before
        found[name] = {"trained": trained, "averaged": count}
    result(found)


main()
